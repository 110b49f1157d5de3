#include "server/server_metrics.h"

#include <prometheus/collectable.h>
#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <mutex>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace karez {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

// vLLM's buckets, so that its dashboards fit.
const prometheus::Histogram::BucketBoundaries kFirstTokenSeconds = {
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25, 0.5,  0.75,
    1.0,   2.5,   5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 160., 640., 2560.};
const prometheus::Histogram::BucketBoundaries kTokenGapSeconds = {
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
    0.4,   0.5,    0.75,  1.0,  2.5,   5.0,  7.5,   10., 20.,  40., 80.};
const prometheus::Histogram::BucketBoundaries kRequestSeconds = {
    0.3,  0.5,  0.8,  1.0,  1.5,  2.0,   2.5,   5.0,   10.0,  15.0,  20.0,
    30.0, 40.0, 50.0, 60.0, 120., 240.0, 480.0, 960.0, 1920., 7680.0};

struct Sample {
  std::string_view name;
  std::string_view help;
  MetricType type;
  double value;
};

MetricFamily family(const Sample& sample) {
  ClientMetric metric;
  metric.gauge.value = sample.value;
  metric.counter.value = sample.value;
  return {std::string(sample.name), std::string(sample.help), sample.type, {metric}};
}

// A counter for each value of a label.
MetricFamily labelled_counter(std::string_view name, std::string_view help, const char* label,
                              std::span<const std::pair<std::string, double>> counts) {
  MetricFamily all{std::string(name), std::string(help), MetricType::Counter, {}};
  for (const auto& [value, count] : counts) {
    ClientMetric metric;
    metric.label = {{label, value}};
    metric.counter.value = count;
    all.metric.push_back(std::move(metric));
  }
  return all;
}

double share(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

// What became of guesses, by their source where it applies.
std::vector<MetricFamily> lookahead_families(const PrefetchStats& stats) {
  constexpr auto kCounter = MetricType::Counter;
  const auto number = [](std::int64_t value) { return static_cast<double>(value); };
  using BySource = PrefetchStats::BySource;
  struct SourceSample {
    std::string_view name;
    std::string_view help;
    std::int64_t BySource::*count;
  };
  const std::array<SourceSample, 5> by_source = {{
      {"karez_lookahead_predicted_blocks_total", "Blocks that a source expected to be needed.",
       &BySource::predicted},
      {"karez_lookahead_fetched_blocks_total", "Of these, read from home ahead of need.",
       &BySource::fetched},
      {"karez_lookahead_useful_blocks_total", "Of the fetched, there when they were needed.",
       &BySource::useful},
      {"karez_lookahead_late_blocks_total", "Of the fetched, needed before they were there.",
       &BySource::late},
      {"karez_lookahead_wasted_blocks_total", "Of the fetched, gone before they were needed.",
       &BySource::wasted},
  }};
  std::vector<MetricFamily> families;
  for (const SourceSample& sample : by_source) {
    std::vector<std::pair<std::string, double>> counts;
    for (const LookaheadSource source : kLookaheadSources) {
      counts.emplace_back(to_string(source), number(stats.of(source).*sample.count));
    }
    families.push_back(labelled_counter(sample.name, sample.help, "source", counts));
  }
  const std::array<Sample, 8> samples = {{
      {"karez_lookahead_resident_blocks_total", "Of the predicted, in the fast tier already.",
       kCounter, number(stats.already_resident)},
      {"karez_lookahead_repeated_blocks_total", "Of the predicted, under way or named already.",
       kCounter, number(stats.already_hinted)},
      {"karez_lookahead_dropped_blocks_total", "Of the predicted, beyond the cap or without room.",
       kCounter, number(stats.dropped)},
      {"karez_lookahead_failed_blocks_total", "Of the fetched, could not be read then.", kCounter,
       number(stats.failed)},
      {"karez_lookahead_fetched_bytes_total", "Bytes of the fetched blocks.", kCounter,
       number(stats.bytes_fetched)},
      {"karez_lookahead_wasted_bytes_total", "Bytes of the wasted blocks.", kCounter,
       number(stats.bytes_wasted)},
      {"karez_kv_layers_read_total", "Layers of steps that needed blocks.", kCounter,
       number(stats.layers_read)},
      {"karez_kv_layers_ready_total", "Of these, all blocks were there.", kCounter,
       number(stats.layers_ready)},
  }};
  for (const Sample& sample : samples) {
    families.push_back(family(sample));
  }
  return families;
}

std::vector<MetricFamily> compression_families(const CompressionStats& stats) {
  const auto number = [](std::int64_t value) { return static_cast<double>(value); };
  const auto counter = [](std::string_view name, std::string_view help, double value) {
    return family({name, help, MetricType::Counter, value});
  };
  return {
      counter("karez_compressed_windows_total", "Aged windows of answers that were compressed.",
              number(stats.windows)),
      counter("karez_compression_early_windows_total",
              "Windows that were due before their time, because slots were short.",
              number(stats.early_windows)),
      labelled_counter(
          "karez_compression_pairs_total",
          "What became of their pairs, of one layer and KV head each.", "fate",
          std::vector<std::pair<std::string, double>>{{"kept", number(stats.pairs_kept)},
                                                      {"archived", number(stats.pairs_archived)},
                                                      {"dropped", number(stats.pairs_dropped)}}),
      counter("karez_compression_brought_back_pairs_total",
              "Archived pairs that rows attended to, each time.", number(stats.pairs_brought_back)),
      counter("karez_compression_saved_bytes_total", "KV bytes that windows gave up.",
              number(stats.bytes_saved)),
      counter("karez_compression_seconds_total", "Time spent on it.", stats.seconds),
      family({"karez_compression_query_bytes", "Kept queries of windows to come.",
              MetricType::Gauge, number(stats.query_bytes)})};
}

// Prefix blocks that outlive the process.
std::vector<MetricFamily> store_families(const PrefixStoreStats& store,
                                         const PrefixRestorerStats& restores) {
  constexpr auto kGauge = MetricType::Gauge;
  constexpr auto kCounter = MetricType::Counter;
  const auto number = [](std::int64_t value) { return static_cast<double>(value); };
  const std::array<Sample, 17> samples = {{
      {"karez_kv_store_hits_total", "Requests whose prompt the store knew further.", kCounter,
       number(restores.hits)},
      {"karez_kv_store_misses_total", "Requests that asked the store in vain.", kCounter,
       number(restores.misses)},
      {"karez_kv_store_restored_blocks_total", "Blocks of 16 tokens that came back.", kCounter,
       number(restores.restored_blocks)},
      {"karez_kv_store_restored_bytes_total", "Bytes of keys and values of these.", kCounter,
       number(restores.restored_bytes)},
      {"karez_kv_store_restore_seconds_total", "Time that requests waited for these.", kCounter,
       restores.seconds},
      {"karez_kv_store_stored_blocks_total", "Blocks of 16 tokens that were stored.", kCounter,
       number(store.stored_blocks)},
      {"karez_kv_store_stored_bytes_total", "Bytes of these.", kCounter,
       number(store.stored_bytes)},
      {"karez_kv_store_dropped_blocks_total", "Blocks that could not be stored when they came.",
       kCounter, number(store.dropped_blocks)},
      {"karez_kv_store_removed_blocks_total", "Stored blocks that gave way to others.", kCounter,
       number(store.usage.removed)},
      {"karez_kv_store_bad_records_total", "Records that were not what they should be.", kCounter,
       number(store.bad_records)},
      {"karez_kv_store_late_loads_total", "Loads that had no answer in time.", kCounter,
       number(store.late_loads)},
      {"karez_kv_store_load_errors_total", "Loads that failed.", kCounter,
       number(store.load_errors)},
      {"karez_kv_store_store_errors_total", "Batches of writes that failed.", kCounter,
       number(store.store_errors)},
      {"karez_kv_store_loads_stopped", "1 while nothing is loaded because of failures.", kGauge,
       store.loads_stopped ? 1.0 : 0.0},
      {"karez_kv_store_stores_stopped", "1 while nothing is stored because of failures.", kGauge,
       store.stores_stopped ? 1.0 : 0.0},
      {"karez_kv_store_used_bytes", "Bytes of the folder that are ours.", kGauge,
       number(store.usage.used_bytes)},
      {"karez_kv_store_cap_bytes", "What they may be.", kGauge, number(store.usage.cap_bytes)},
  }};
  std::vector<MetricFamily> families;
  for (const Sample& sample : samples) {
    families.push_back(family(sample));
  }
  return families;
}

// Keys and values that go from a node that prefills to one that decodes.
std::vector<MetricFamily> transfer_families(const KvPeerStats& peers) {
  constexpr auto kGauge = MetricType::Gauge;
  constexpr auto kCounter = MetricType::Counter;
  const auto number = [](std::int64_t value) { return static_cast<double>(value); };
  std::vector<MetricFamily> families;
  const auto add = [&](std::span<const Sample> samples) {
    for (const Sample& sample : samples) {
      families.push_back(family(sample));
    }
  };
  if (peers.produces) {
    const KvProducerStats& stats = peers.producer;
    add(std::array<Sample, 7>{{
        {"karez_kv_export_requests_total", "Prompts whose KV was kept for a consumer.", kCounter,
         number(stats.exported)},
        {"karez_kv_export_released_total", "Of these, fetched and given back.", kCounter,
         number(stats.released)},
        {"karez_kv_export_expired_total", "Of these, freed because nobody asked in time.", kCounter,
         number(stats.expired)},
        {"karez_kv_export_failed_total", "Prompts whose KV could not be kept.", kCounter,
         number(stats.failed)},
        {"karez_kv_export_held", "Kept now.", kGauge, number(stats.port.exports)},
        {"karez_kv_export_refused_peers_total", "Handshakes that failed.", kCounter,
         number(stats.port.refused)},
        {"karez_kv_export_sent_bytes_total", "Bytes sent in messages.", kCounter,
         number(stats.port.bytes_sent)},
    }});
  }
  if (peers.consumes) {
    const KvConsumerStats& stats = peers.consumer;
    add(std::array<Sample, 10>{{
        {"karez_kv_admit_requests_total", "Requests whose KV came from a producer.", kCounter,
         number(stats.admitted)},
        {"karez_kv_admit_failed_total", "Requests whose KV did not come.", kCounter,
         number(stats.failed)},
        {"karez_kv_admit_lost_total", "Sequences whose KV was not given any more later.", kCounter,
         number(stats.lost)},
        {"karez_kv_admit_bytes_total", "Bytes taken in before a first step.", kCounter,
         number(stats.bytes_admitted)},
        {"karez_kv_admit_full_bytes_total", "What all blocks of these would have been.", kCounter,
         number(stats.bytes_full)},
        {"karez_kv_admit_seconds_total", "Time until requests were admitted.", kCounter,
         stats.admit_seconds},
        {"karez_kv_peer_read_blocks_total", "Blocks read from producers.", kCounter,
         number(stats.pool.blocks_read)},
        {"karez_kv_peer_failed_reads_total", "Reads of these that failed.", kCounter,
         number(stats.pool.reads_failed)},
        {"karez_kv_peer_received_bytes_total", "Bytes from producers, of any kind.", kCounter,
         number(stats.pool.bytes_received)},
        {"karez_kv_peer_leases", "Requests whose KV lies with a producer now.", kGauge,
         number(stats.pool.leases)},
    }});
  }
  return families;
}

std::vector<MetricFamily> engine_families(const EngineStats& stats) {
  constexpr auto kGauge = MetricType::Gauge;
  constexpr auto kCounter = MetricType::Counter;
  const auto number = [](std::int64_t value) { return static_cast<double>(value); };
  const ResidencyStats& tiers = stats.tiers;
  const std::array<Sample, 37> samples = {{
      {"vllm:num_requests_running", "Requests that take part in steps.", kGauge,
       number(stats.requests_running)},
      {"vllm:num_requests_waiting", "Requests in the queue.", kGauge,
       number(stats.requests_waiting)},
      {"vllm:kv_cache_usage_perc", "Used share of the KV slots, 0 to 1.", kGauge,
       share(stats.slots_used, stats.slots_total)},
      {"vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.", kCounter,
       number(stats.prefix_cache_queries_tokens)},
      {"vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", kCounter,
       number(stats.prefix_cache_hits_tokens)},
      {"vllm:prompt_tokens_total", "Prompt tokens computed or found.", kCounter,
       number(stats.prompt_tokens)},
      {"vllm:generation_tokens_total", "Tokens generated.", kCounter,
       number(stats.generated_tokens)},
      {"vllm:num_preemptions_total", "Requests that lost their slots and had to wait.", kCounter,
       number(stats.preemptions)},
      {"karez_kv_slots_used", "KV slots in use by requests.", kGauge, number(stats.slots_used)},
      {"karez_kv_slots_idle", "KV slots of cached prompts that no request uses.", kGauge,
       number(stats.slots_idle)},
      {"karez_kv_slots_total", "KV slots under the cap.", kGauge, number(stats.slots_total)},
      {"karez_kv_used_bytes", "Bytes of the KV slots in use by requests.", kGauge,
       number(stats.slots_used * stats.slot_bytes)},
      {"karez_kv_cap_bytes", "Bytes of all KV slots.", kGauge,
       number(stats.slots_total * stats.slot_bytes)},
      {"karez_engine_steps_total", "Steps of the engine.", kCounter, number(stats.steps)},
      {"karez_engine_step_seconds_total", "Time inside steps.", kCounter, stats.step_seconds},
      {"karez_engine_forward_seconds_total", "Time inside the model's forward passes.", kCounter,
       stats.forward_seconds},
      {"karez_engine_step_overhead_ratio",
       "Share of the step time outside of the forward passes, 0 to 1.", kGauge,
       stats.step_seconds > 0 ? 1 - stats.forward_seconds / stats.step_seconds : 0},
      {"karez_prefix_cache_hit_ratio", "Prefix cache hits / queries since start, 0 to 1.", kGauge,
       share(stats.prefix_cache_hits_tokens, stats.prefix_cache_queries_tokens)},
      {"karez_kv_home_bytes", "Bytes of the tier below the fast one.", kGauge,
       number(tiers.home_bytes_total)},
      {"karez_kv_home_used_bytes", "Of these, in use.", kGauge, number(tiers.home_bytes_used)},
      {"karez_kv_clean_slots", "KV slots whose content is at home too.", kGauge,
       number(tiers.blocks_clean)},
      {"karez_kv_blocks_needed_total", "Blocks that layers read.", kCounter,
       number(tiers.blocks_needed)},
      {"karez_kv_demand_misses_total", "Of these, not in the fast tier.", kCounter,
       number(tiers.demand_misses)},
      {"karez_kv_home_hit_ratio", "Share of the needed blocks that were there, 0 to 1.", kGauge,
       tiers.blocks_needed > 0 ? 1 - share(tiers.demand_misses, tiers.blocks_needed) : 1},
      {"karez_kv_blocks_skipped_total", "Blocks that rows did without.", kCounter,
       number(stats.missed.blocks_skipped)},
      {"karez_kv_missed_mass_total", "Attention that those had, estimated, in whole rows.",
       kCounter, stats.missed.sum},
      {"karez_kv_missed_mass_lists_total", "Lists of blocks that could have lost some.", kCounter,
       number(stats.missed.num_lists)},
      {"karez_kv_missed_mass_ratio", "Missed attention of a list, mean, 0 to 1.", kGauge,
       stats.missed.mean()},
      {"karez_kv_missed_mass_worst", "The same of the list that missed most.", kGauge,
       stats.missed.worst},
      {"karez_kv_home_read_bytes_total", "Bytes read from home.", kCounter,
       number(tiers.bytes_read)},
      {"karez_kv_home_written_bytes_total", "Bytes written home.", kCounter,
       number(tiers.bytes_written)},
      {"karez_kv_stall_seconds_total", "Time that steps waited for blocks.", kCounter,
       tiers.stall_seconds},
      {"karez_kv_evictions_total", "Clean blocks that gave up their slot.", kCounter,
       number(tiers.evictions)},
      {"karez_kv_blocks_lost_total", "Blocks that could not be read back.", kCounter,
       number(tiers.blocks_lost)},
      {"karez_kv_home_write_failures_total", "Blocks whose write failed.", kCounter,
       number(tiers.write_failures)},
      {"karez_kv_free_slots", "KV slots that nobody uses.", kGauge,
       number(stats.slots_total - stats.slots_used - stats.slots_idle)},
      {"karez_demotions_total", "Preempted requests that kept their KV at home.", kCounter,
       number(stats.demotions)},
  }};
  std::vector<MetricFamily> families;
  for (const Sample& sample : samples) {
    families.push_back(family(sample));
  }
  for (MetricFamily& one : lookahead_families(tiers.prefetch)) {
    families.push_back(std::move(one));
  }
  for (MetricFamily& one : compression_families(stats.compression)) {
    families.push_back(std::move(one));
  }
  return families;
}

// Names and labels are vLLM's, the last three ours.
std::vector<MetricFamily> speculation_families(const SpeculationStats& stats) {
  const auto counter = [](std::string_view name, std::string_view help, std::int64_t value) {
    return family({name, help, MetricType::Counter, static_cast<double>(value)});
  };
  std::vector<MetricFamily> families = {
      counter("vllm:spec_decode_num_drafts_total", "Times that drafts of a sequence were verified.",
              stats.drafts),
      counter("vllm:spec_decode_num_draft_tokens_total", "Draft tokens that were verified.",
              stats.draft_tokens),
      counter("vllm:spec_decode_num_accepted_tokens_total", "Draft tokens that were accepted.",
              stats.accepted_tokens),
      counter("karez_spec_switched_off_total",
              "Times that drafting for a sequence was found not to pay.", stats.switched_off),
      family({"karez_spec_sequences_off", "Sequences that nobody drafts for at present.",
              MetricType::Gauge, static_cast<double>(stats.sequences_off)}),
      family({"karez_spec_propose_seconds_total", "Time spent on making drafts.",
              MetricType::Counter, stats.propose_seconds}),
  };
  std::vector<std::pair<std::string, double>> accepted;
  for (std::size_t i = 0; i < stats.accepted_at.size(); ++i) {
    if (i > 0 && stats.accepted_at[i] == 0) {
      break;
    }
    accepted.emplace_back(std::to_string(i), static_cast<double>(stats.accepted_at[i]));
  }
  families.push_back(labelled_counter("vllm:spec_decode_num_accepted_tokens_per_pos_total",
                                      "Accepted draft tokens by their place among the drafts.",
                                      "position", accepted));
  return families;
}

}  // namespace

struct ServerMetrics::Impl {
  Impl()
      : first_token(histogram("vllm:time_to_first_token_seconds",
                              "From the request's arrival to its first token.",
                              kFirstTokenSeconds)),
        token_gap(histogram("vllm:inter_token_latency_seconds",
                            "Between one token of an answer and the next.", kTokenGapSeconds)),
        request(histogram("vllm:e2e_request_latency_seconds",
                          "From the request's arrival to its last token.", kRequestSeconds)),
        success(prometheus::BuildCounter()
                    .Name("vllm:request_success_total")
                    .Help("Answers that ended, by reason.")
                    .Register(registry)),
        responses(prometheus::BuildCounter()
                      .Name("karez_http_responses_total")
                      .Help("HTTP responses by status.")
                      .Register(registry)),
        slow_readers(prometheus::BuildCounter()
                         .Name("karez_streams_cut_total")
                         .Help("Streams cut because the client did not read them.")
                         .Register(registry)
                         .Add({})) {
    // They exist from the start, so that rates have a zero to begin with.
    for (const char* reason : {"stop", "length", "abort", "error"}) {
      success.Add({{"finished_reason", reason}});
    }
    responses.Add({{"status", "200"}});
  }

  prometheus::Histogram& histogram(const char* name, const char* help,
                                   const prometheus::Histogram::BucketBoundaries& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, buckets);
  }

  prometheus::Registry registry;
  prometheus::Histogram& first_token;
  prometheus::Histogram& token_gap;
  prometheus::Histogram& request;
  prometheus::Family<prometheus::Counter>& success;
  prometheus::Family<prometheus::Counter>& responses;
  prometheus::Counter& slow_readers;

  mutable std::mutex mutex;
  std::function<EngineStats()> stats;
  std::function<std::size_t()> connections;
  int block_tokens = 0;
  int max_num_seqs = 0;
};

ServerMetrics::ServerMetrics() : impl_(std::make_unique<Impl>()) {}
ServerMetrics::~ServerMetrics() = default;

void ServerMetrics::set_engine(std::function<EngineStats()> stats, int block_tokens,
                               int max_num_seqs) {
  const std::lock_guard lock(impl_->mutex);
  impl_->stats = std::move(stats);
  impl_->block_tokens = block_tokens;
  impl_->max_num_seqs = max_num_seqs;
}

void ServerMetrics::set_connections(std::function<std::size_t()> connections) {
  const std::lock_guard lock(impl_->mutex);
  impl_->connections = std::move(connections);
}

void ServerMetrics::observe_first_token(double seconds) { impl_->first_token.Observe(seconds); }
void ServerMetrics::observe_token_gap(double seconds) { impl_->token_gap.Observe(seconds); }

void ServerMetrics::observe_request(double seconds, FinishReason reason) {
  impl_->request.Observe(seconds);
  const char* name = reason == FinishReason::kStop        ? "stop"
                     : reason == FinishReason::kLength    ? "length"
                     : reason == FinishReason::kCancelled ? "abort"
                                                          : "error";
  impl_->success.Add({{"finished_reason", name}}).Increment();
}

void ServerMetrics::count_response(int http_status) {
  impl_->responses.Add({{"status", std::to_string(http_status)}}).Increment();
}

void ServerMetrics::count_slow_reader() { impl_->slow_readers.Increment(); }

std::string ServerMetrics::page() const {
  std::vector<MetricFamily> families = impl_->registry.Collect();
  const std::lock_guard lock(impl_->mutex);
  if (impl_->connections) {
    families.push_back(family({"karez_http_connections", "Open connections.", MetricType::Gauge,
                               static_cast<double>(impl_->connections())}));
  }
  if (impl_->stats) {
    const EngineStats stats = impl_->stats();
    for (MetricFamily& one : engine_families(stats)) {
      families.push_back(std::move(one));
    }
    if (stats.has_store) {
      for (MetricFamily& one : store_families(stats.store, stats.restores)) {
        families.push_back(std::move(one));
      }
    }
    if (stats.peers.produces || stats.peers.consumes) {
      for (MetricFamily& one : transfer_families(stats.peers)) {
        families.push_back(std::move(one));
      }
    }
    if (stats.has_speculation) {
      for (MetricFamily& one : speculation_families(stats.speculation)) {
        families.push_back(std::move(one));
      }
    }
    MetricFamily config = family(
        {"vllm:cache_config_info", "Settings of the KV cache, as labels.", MetricType::Gauge, 1});
    config.metric[0].label = {{"block_size", std::to_string(impl_->block_tokens)},
                              {"max_num_seqs", std::to_string(impl_->max_num_seqs)}};
    families.push_back(std::move(config));
  }
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families);
  return out.str();
}

}  // namespace karez
