#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "kv/prefix_cache.h"
#include "kv/store/prefix_store.h"

namespace karez {
namespace {

using SteadyClock = std::chrono::steady_clock;

std::function<double()> clock_of(const EngineOptions& options) {
  if (options.clock) {
    return options.clock;
  }
  return
      [] { return std::chrono::duration<double>(SteadyClock::now().time_since_epoch()).count(); };
}

std::unique_ptr<PrefixCache> prefix_cache_of(const EngineOptions& options, KVCacheManager& kv) {
  if (!options.prefix_cache) {
    return nullptr;
  }
  return std::make_unique<PrefixCache>(kv, options.kv_identity, options.prefix_hash_bits);
}

// Null: all layers have sliding windows.
std::unique_ptr<WindowCompressor> compressor_of(const EngineOptions& options, KVCacheManager& kv,
                                                const KeyIndex* key_index,
                                                const ModelConfig& config) {
  if (!kv.compressible_group()) {
    return nullptr;
  }
  return std::make_unique<WindowCompressor>(
      kv, key_index, options.compression,
      WindowCompressor::Attention{config.attention_scale, config.attention_logit_softcap});
}

// Choices of one seed differ, and none gets the value that means a random one.
std::uint32_t seed_of_choice(std::uint32_t seed, int choice) {
  if (seed == kRandomSeed) {
    return seed;
  }
  const std::uint32_t sum = seed + static_cast<std::uint32_t>(choice);
  return sum < seed || sum == kRandomSeed ? sum + 1 : sum;
}

}  // namespace

Expected<void> EngineOptions::validate() const {
  const auto check = [](const char* field, int value, int low) -> Expected<void> {
    if (value < low) {
      return fail(StatusCode::kInvalidArgument,
                  fmt::format("{} is {}, allowed are {} and more", field, value, low));
    }
    return {};
  };
  if (auto valid = scheduler.validate(); !valid) {
    return valid;
  }
  if (auto valid = check("the context", context_tokens, 2); !valid) {
    return valid;
  }
  if (auto valid = compression.validate(); !valid) {
    return valid;
  }
  return check("max-queue", max_queue, 1);
}

Expected<std::unique_ptr<Engine>> Engine::create(
    const EngineOptions& options, std::unique_ptr<ModelRunner> runner,
    std::unique_ptr<KVCacheManager> kv, const Vocabulary& vocabulary,
    std::unique_ptr<KeyIndex> key_index, std::unique_ptr<BlockLoader> loader,
    std::unique_ptr<Speculation> speculation, std::unique_ptr<PrefixStore> store, KvPeers peers) {
  if (auto valid = options.validate(); !valid) {
    return fail(std::move(valid.error()));
  }
  std::unique_ptr<Engine> engine(
      new Engine(options, std::move(runner), std::move(kv), vocabulary, std::move(key_index),
                 std::move(loader), std::move(speculation), std::move(store), std::move(peers)));
  engine->thread_ = std::thread([raw = engine.get()] { raw->run(); });
  return engine;
}

Engine::Engine(const EngineOptions& options, std::unique_ptr<ModelRunner> runner,
               std::unique_ptr<KVCacheManager> kv, const Vocabulary& vocabulary,
               std::unique_ptr<KeyIndex> key_index, std::unique_ptr<BlockLoader> loader,
               std::unique_ptr<Speculation> speculation, std::unique_ptr<PrefixStore> store,
               KvPeers peers)
    : options_(options),
      vocabulary_(vocabulary),
      limits_{runner->config().vocab_size, options.context_tokens, options.scheduler.max_num_seqs},
      spec_(kv->spec()),
      can_compress_(kv->compressible_group().has_value()),
      loader_(std::move(loader)),
      runner_(std::move(runner)),
      key_index_(std::move(key_index)),
      kv_(std::move(kv)),
      store_(std::move(store)),
      loop_(*runner_, *kv_, key_index_.get(), loader_.get(), prefix_cache_of(options, *kv_),
            std::move(speculation),
            compressor_of(options, *kv_, key_index_.get(), runner_->config()),
            {store_.get(), options.load_limit_seconds}, options.scheduler, options.dense_rows,
            clock_of(options)),
      stats_(loop_.stats()) {
  loop_.set_peers(std::move(peers));
  if (store_ != nullptr) {
    store_->set_wake([this] {
      const std::lock_guard lock(mutex_);
      has_store_results_ = true;
      wake_.notify_one();
    });
  }
}

Engine::~Engine() {
  shutdown(std::chrono::milliseconds(0));
  if (store_ != nullptr) {
    store_->set_wake({});
  }
}

std::int64_t Engine::kv_bytes(std::int64_t num_tokens) const {
  return spec_.slots_for_sequence(num_tokens, options_.scheduler.max_num_batched_tokens) *
         static_cast<std::int64_t>(spec_.slot_bytes());
}

Expected<RequestId> Engine::submit(Request request, Callback callback) {
  if (auto checked = check_request(request, limits_); !checked) {
    return fail(std::move(checked.error()));
  }
  if (!loop_.can_ever_fit(static_cast<int>(request.prompt.size()))) {
    Status too_large(
        StatusCode::kResourceExhausted,
        fmt::format("prompt has {} tokens, whose KV takes {} bytes, more than the {} of the "
                    "fast tier; a shorter prompt or a larger --kv-fast-bytes is needed",
                    request.prompt.size(),
                    kv_bytes(static_cast<std::int64_t>(request.prompt.size())),
                    stats().slots_total * stats().slot_bytes));
    return fail(std::move(too_large).with_field("prompt"));
  }
  auto compression = compression_of(request);
  if (!compression) {
    return fail(std::move(compression.error()));
  }
  // Samplers are made here: a grammar takes time, which running requests should not wait for. Nor
  // should those that submit next wait for one that is refused anyway.
  if (auto room = check_queue(); !room) {
    return fail(std::move(room.error()));
  }
  std::vector<std::unique_ptr<Sampler>> samplers;
  for (int choice = 0; choice < request.num_choices; ++choice) {
    SamplingParams params = request.sampling;
    params.seed = seed_of_choice(params.seed, choice);
    auto sampler = vocabulary_.make_sampler(params);
    if (!sampler) {
      // The parameters are checked, so it is the grammar.
      return fail(std::move(sampler.error()).with_field("grammar"));
    }
    for (const TokenId token : request.prompt) {
      (*sampler)->accept(token);
    }
    samplers.push_back(std::move(*sampler));
  }

  const std::lock_guard lock(mutex_);
  // It may have filled up meanwhile.
  if (auto room = room_in_queue(); !room) {
    return fail(std::move(room.error()));
  }
  request.id = ++last_id_;
  EngineLoop::Submission submission;
  const int max_tokens = max_answer_tokens(request, limits_);
  submission.request = std::make_shared<const Request>(std::move(request));
  for (std::size_t choice = 0; choice < samplers.size(); ++choice) {
    submission.choices.emplace_back(submission.request, static_cast<int>(choice), max_tokens,
                                    vocabulary_, std::move(samplers[choice]));
  }
  submission.callback = std::move(callback);
  submission.compression = *compression;
  submission.submitted_seconds = clock_of(options_)();
  submissions_.push_back(std::move(submission));
  wake_.notify_one();
  return last_id_;
}

Expected<void> Engine::check_queue() const {
  const std::lock_guard lock(mutex_);
  return room_in_queue();
}

Expected<void> Engine::room_in_queue() const {
  if (is_closing_) {
    return fail(StatusCode::kUnavailable, "the engine is shutting down");
  }
  const auto queued = static_cast<std::size_t>(stats_.requests_waiting) + submissions_.size();
  if (queued >= static_cast<std::size_t>(options_.max_queue)) {
    return fail(StatusCode::kUnavailable,
                fmt::format("{} requests are waiting already, allowed are {} (max-queue)", queued,
                            options_.max_queue));
  }
  return {};
}

Expected<CompressionSchedule> Engine::compression_of(const Request& request) const {
  const KvCompressionRequest& asked = request.kv_compression;
  // A consumer reads whole blocks of the prompt's positions.
  const bool is_for_consumer =
      request.kv_transfer && request.kv_transfer->role == KvTransfer::Role::kProduce;
  if (is_for_consumer || !asked.enabled.value_or(options_.compress)) {
    return CompressionSchedule{};
  }
  if (!can_compress_) {
    return fail_field("kv_compression",
                      "kv_compression: every layer of this model has a sliding window, there is "
                      "nothing to compress");
  }
  // What clients can have kept is bounded. A window that is not asked for is the server's own.
  const int most_for_memory =
      most_window_of_request(spec_, options_.compression, limits_.max_num_seqs);
  const int most_window = std::min(KvCompressionRequest::kMostWindow, most_for_memory);
  const int window = asked.window_tokens.value_or(KvCompressionRequest::kLeastWindow);
  if (window < KvCompressionRequest::kLeastWindow || window > most_window ||
      window % kBlockSize != 0) {
    return fail_field(
        "kv_compression.window",
        fmt::format(
            "kv_compression.window is {}, allowed are multiples of {} from {} to {}{}", window,
            kBlockSize, KvCompressionRequest::kLeastWindow, most_window,
            most_window == KvCompressionRequest::kMostWindow
                ? ""
                : fmt::format(": the queries that {} sequences (max-num-seqs) keep may take {}",
                              limits_.max_num_seqs, format_bytes(kMostQueryBytes))));
  }
  CompressionOptions options = options_.compression;
  options.keep = asked.keep.value_or(options.keep);
  options.window_tokens = asked.window_tokens.value_or(options.window_tokens);
  if (!(options.keep > 0 && options.keep < 1)) {
    return fail_field("kv_compression.keep",
                      fmt::format("kv_compression.keep is {}, allowed are numbers above 0 and "
                                  "below 1",
                                  options.keep));
  }
  // The server's own options are valid, but its chunks may not fit what the two leave of a window.
  if (auto valid = options.validate(); !valid) {
    return fail_field("kv_compression", fmt::format("kv_compression: {}", valid.error().message()));
  }
  const auto prompt_tokens = static_cast<int>(request.prompt.size());
  const CompressionSchedule schedule = schedule_in(spec_, options, prompt_tokens);
  // One that ends before its first window needs no memory for queries.
  const std::int64_t most_tokens =
      std::int64_t{prompt_tokens} + max_answer_tokens(request, limits_);
  return most_tokens < schedule.earliest_of(0) ? CompressionSchedule{} : schedule;
}

void Engine::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  cancellations_.push_back(id);
  wake_.notify_one();
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  stats.requests_waiting += static_cast<int>(submissions_.size());
  if (loop_.store() != nullptr) {
    stats.store = loop_.store()->stats();  // it stops and goes on between steps, too
  }
  return stats;
}

std::shared_ptr<const KvMap> Engine::kv_map() {
  const std::lock_guard lock(mutex_);
  wants_kv_map_ = true;
  return kv_map_;
}

void Engine::shutdown(std::chrono::milliseconds deadline) {
  {
    const std::lock_guard lock(mutex_);
    const auto at = SteadyClock::now() + deadline;
    deadline_ = is_closing_ ? std::min(deadline_, at) : at;
    is_closing_ = true;
    wake_.notify_one();
  }
  const std::lock_guard lock(join_mutex_);
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Engine::run() {
  while (true) {
    std::vector<EngineLoop::Submission> submissions;
    std::vector<RequestId> cancellations;
    bool is_over = false;
    {
      std::unique_lock lock(mutex_);
      const auto has_something = [&] {
        const bool is_holding = loop_.is_restoring() || loop_.waits_for_peers();
        const bool can_step = loop_.has_work() && !loop_.waits_for_slots();
        return can_step || !submissions_.empty() || !cancellations_.empty() ||
               (is_closing_ && !is_holding) || (loop_.is_restoring() && has_store_results_);
      };
      if (const auto turn = loop_.next_turn()) {
        wake_.wait_for(lock, *turn, has_something);
      } else {
        wake_.wait(lock, has_something);
      }
      has_store_results_ = false;
      submissions.swap(submissions_);
      cancellations.swap(cancellations_);
      // Counted as waiting until the scheduler has seen them.
      stats_.requests_waiting += static_cast<int>(submissions.size());
      is_over = is_closing_ && SteadyClock::now() >= deadline_;
    }
    for (EngineLoop::Submission& submission : submissions) {
      loop_.add(std::move(submission));
    }
    for (const RequestId id : cancellations) {
      loop_.cancel(id);
    }
    if (is_over) {
      loop_.cancel_all();
    }
    loop_.advance_restores();
    loop_.advance_peers();
    if (loop_.has_work()) {
      loop_.plan();
      {
        const std::lock_guard lock(mutex_);
        stats_ = loop_.stats();
        if (std::exchange(wants_kv_map_, false)) {
          loop_.want_kv_map();
        }
      }
      loop_.compute();
    }
    {
      const std::lock_guard lock(mutex_);
      stats_ = loop_.stats();
      if (auto map = loop_.take_kv_map()) {
        kv_map_ = std::move(map);
      }
      is_over = is_closing_ && !loop_.has_work() && !loop_.is_restoring() &&
                !loop_.waits_for_peers() && submissions_.empty();
    }
    loop_.deliver();
    if (is_over) {
      return;
    }
  }
}

}  // namespace karez
