#include "engine/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/bytes.h"

namespace karez {
namespace {

nlohmann::json or_null(const std::optional<double>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

double share(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

// Counts are means of a step.
nlohmann::json lookahead_to_json(const BenchLookahead& lookahead) {
  const auto per_step = [&](std::int64_t count) { return share(count, lookahead.steps); };
  const PrefetchStats& counts = lookahead.counts;
  nlohmann::json json = {{"already_resident", per_step(counts.already_resident)},
                         {"already_hinted", per_step(counts.already_hinted)},
                         {"dropped", per_step(counts.dropped)},
                         {"failed", per_step(counts.failed)},
                         {"fetched_bytes", per_step(counts.bytes_fetched)},
                         {"wasted_bytes", per_step(counts.bytes_wasted)},
                         {"wasted_share", share(counts.bytes_wasted, counts.bytes_fetched)}};
  const auto of = [&](const PrefetchStats::BySource& source) {
    return nlohmann::json{{"predicted", per_step(source.predicted)},
                          {"fetched", per_step(source.fetched)},
                          {"useful", per_step(source.useful)},
                          {"late", per_step(source.late)},
                          {"wasted", per_step(source.wasted)}};
  };
  json.update(of(counts.total()));
  for (const LookaheadSource source : kLookaheadSources) {
    if (counts.of(source).predicted > 0) {
      json["sources"][std::string(to_string(source))] = of(counts.of(source));
    }
  }
  return json;
}

nlohmann::json agreement_to_json(const AgreementFigures& figures) {
  return {{"lists", figures.lists},
          {"agreement_mean", figures.agreement_mean},
          {"agreement_p1", figures.agreement_p1},
          {"agreement_worst", figures.agreement_worst},
          {"mass_mean", figures.mass_mean},
          {"mass_p1", figures.mass_p1},
          {"mass_worst", figures.mass_worst}};
}

std::string agreement_lines(const LookaheadMeter::Figures& figures) {
  std::string text;
  for (const auto& [name, of] :
       {std::pair("the row before", &figures.previous), std::pair("a probe", &figures.probe)}) {
    if (of->lists > 0) {
      text += fmt::format(
          "\n  {} names {:.2f} % of what a row selects ({:.1f} % at p1, {:.1f} % at worst), with "
          "{:.2f} % of its attention ({:.1f} %, {:.1f} %)",
          name, of->agreement_mean * 100, of->agreement_p1 * 100, of->agreement_worst * 100,
          of->mass_mean * 100, of->mass_p1 * 100, of->mass_worst * 100);
    }
  }
  return text;
}

nlohmann::json run_to_json(const BenchRun& run) {
  nlohmann::json json = {
      {"engine", run.engine},
      {"model", run.model},
      {"kv_mode", run.kv_mode},
      {"token_budget", run.token_budget},
      {"kv_type", run.kv_type},
      {"depth", run.depth},
      {"concurrency", run.concurrency},
      {"threads", run.threads},
      {"prefill_tokens_per_second", run.prefill_tokens_per_second},
      {"decode_tokens_per_second", run.decode_tokens_per_second},
      {"step_ms",
       {{"total", run.step_ms.total},
        {"dense", or_null(run.step_ms.dense)},
        {"attention", or_null(run.step_ms.attention)},
        {"select", or_null(run.step_ms.select)},
        {"stall", or_null(run.step_ms.stall)},
        {"attend", or_null(run.step_ms.attend)},
        {"other", or_null(run.step_ms.other)}}},
      {"kv_fast_bytes", run.kv_fast_bytes},
      {"prefill_repetitions", run.prefill_repetitions},
      {"decode_repetitions", run.decode_repetitions},
  };
  if (run.kv_read_bytes > 0) {
    json["read_bandwidth_bytes_per_second"] = run.read_bandwidth_bytes_per_second;
    json["kv_read_bytes_per_step"] = run.kv_read_bytes;
    json["weight_read_bytes_per_step"] = run.weight_read_bytes;
    json["bandwidth_share"] = or_null(run.bandwidth_share);
    json["attention_over_floor"] = or_null(run.attention_over_floor);
  }
  if (run.running > 0) {
    json["running_at_once"] = run.running;
  }
  if (!run.variant.empty()) {
    json["variant"] = run.variant;
  }
  if (!run.home.empty()) {
    json["home"] = run.home;
    json["home_misses_per_step"] = run.home_misses;
    json["home_miss_share"] = run.home_miss_share;
    json["home_read_bytes_per_step"] = run.home_read_bytes;
    json["home_written_bytes_per_step"] = run.home_written_bytes;
    json["on_miss"] = run.on_miss;
    json["blocks_skipped_per_step"] = run.blocks_skipped;
    json["missed_mass_mean"] = run.missed_mass_mean;
    json["missed_mass_worst"] = run.missed_mass_worst;
    json["layers_ready_share"] = run.layers_ready_share;
  }
  if (run.lookahead) {
    json["lookahead"] = lookahead_to_json(*run.lookahead);
  }
  if (run.agreement) {
    json["agreement"] = {{"previous", agreement_to_json(run.agreement->previous)},
                         {"probe", agreement_to_json(run.agreement->probe)}};
  }
  if (run.decode_over_dense) {
    json["decode_over_dense"] = *run.decode_over_dense;
  }
  if (run.decode_ratio) {
    json["prefill_ratio"] = or_null(run.prefill_ratio);
    json["decode_ratio"] = or_null(run.decode_ratio);
  }
  return json;
}

std::string cell(const std::optional<double>& value, int precision, std::string_view unit = "") {
  return value ? fmt::format("{:.{}f}{}", *value, precision, unit) : "-";
}

std::string bytes_cell(std::int64_t bytes) { return bytes > 0 ? format_bytes(bytes) : "-"; }

// Lines below that of the run's home.
std::string lookahead_lines(const BenchLookahead& lookahead) {
  const PrefetchStats& counts = lookahead.counts;
  const auto line = [&](std::string_view name, const PrefetchStats::BySource& source) {
    const auto percent = [&](std::int64_t part) { return share(part, source.fetched) * 100; };
    return fmt::format(
        "\n  lookahead {:<8} predicts {:.0f} blocks a step, fetches {:.1f}: {:.0f} % useful, "
        "{:.0f} % late, {:.0f} % wasted",
        name, share(source.predicted, lookahead.steps), share(source.fetched, lookahead.steps),
        percent(source.useful), percent(source.late), percent(source.wasted));
  };
  std::string text;
  int num_sources = 0;
  for (const LookaheadSource source : kLookaheadSources) {
    if (counts.of(source).predicted > 0) {
      text += line(to_string(source), counts.of(source));
      ++num_sources;
    }
  }
  if (num_sources > 1) {
    text += line("all", counts.total());
  }
  text += fmt::format("\n  of the bytes fetched {:.0f} % are wasted; a step drops {:.0f} guesses",
                      share(counts.bytes_wasted, counts.bytes_fetched) * 100,
                      share(counts.dropped, lookahead.steps));
  return text;
}

constexpr std::string_view kRowFormat =
    "{:<10} {:<9} {:>6} {:>6} {:>5} | {:>9} {:>6} | {:>9} {:>6} {:>6} | {:>8} {:>8} {:>8} {:>8} "
    "{:>7} "
    "| {:>10} {:>6} {:>6}\n";

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) {
    return 0;
  }
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<BenchCrossover> find_crossovers(const std::vector<BenchRun>& runs) {
  std::map<std::tuple<std::string, int, int, std::string>, std::map<int, double>> ratios;
  for (const BenchRun& run : runs) {
    if (run.decode_over_dense) {
      ratios[{run.kv_type, run.depth, run.token_budget, run.variant}][run.concurrency] =
          *run.decode_over_dense;
    }
  }
  std::vector<BenchCrossover> crossovers;
  for (const auto& [key, by_concurrency] : ratios) {
    if (by_concurrency.size() < 2) {
      continue;
    }
    BenchCrossover crossover{std::get<0>(key), std::get<1>(key), std::get<2>(key), std::get<3>(key),
                             std::nullopt};
    for (auto it = by_concurrency.rbegin(); it != by_concurrency.rend() && it->second >= 1; ++it) {
      crossover.concurrency = it->first;
    }
    crossovers.push_back(std::move(crossover));
  }
  return crossovers;
}

nlohmann::json to_json(const BenchReport& report) {
  nlohmann::json json;
  json["runs"] = nlohmann::json::array();
  for (const BenchRun& run : report.runs) {
    json["runs"].push_back(run_to_json(run));
  }
  json["machine"] = {{"cpu", report.cpu_name},
                     {"cpu_level", report.cpu_level},
                     {"read_bandwidth_bytes_per_second", report.read_bandwidth_bytes_per_second}};
  for (const BenchCrossover& crossover : find_crossovers(report.runs)) {
    nlohmann::json entry = {
        {"kv_type", crossover.kv_type},
        {"depth", crossover.depth},
        {"token_budget", crossover.token_budget},
        {"concurrency",
         crossover.concurrency ? nlohmann::json(*crossover.concurrency) : nlohmann::json(nullptr)}};
    if (!crossover.variant.empty()) {
      entry["variant"] = crossover.variant;
    }
    json["crossovers"].push_back(std::move(entry));
  }
  json["seed"] = report.seed;
  json["tokens_from"] = report.tokens_from;
  if (report.exceeded_context_tokens > 0) {
    json["exceeded_context_tokens"] = report.exceeded_context_tokens;
  }
  if (!report.peer_settings.empty()) {
    json["peer_settings"] = report.peer_settings;
    json["peer_candidates"] = nlohmann::json::array();
    for (const BenchPeerCandidate& candidate : report.peer_candidates) {
      json["peer_candidates"].push_back(
          {{"settings", candidate.settings},
           {"prefill_tokens_per_second", candidate.prefill_tokens_per_second},
           {"decode_tokens_per_second", candidate.decode_tokens_per_second},
           {"chosen", candidate.chosen}});
    }
  }
  return json;
}

std::string to_table(const BenchReport& report) {
  std::string text;
  auto out = std::back_inserter(text);
  fmt::format_to(out, "{}, attention kernels {}, memory read bandwidth {:.1f} GB/s, tokens {}\n",
                 report.cpu_name, report.cpu_level, report.read_bandwidth_bytes_per_second / 1e9,
                 report.tokens_from);
  if (report.exceeded_context_tokens > 0) {
    fmt::format_to(out,
                   "the model was trained for {} tokens: figures beyond are of speed, and nothing "
                   "is said about what it would answer\n",
                   report.exceeded_context_tokens);
  }
  for (const BenchPeerCandidate& candidate : report.peer_candidates) {
    fmt::format_to(out, "llama.cpp {:<32} prefill {:>8.1f} tok/s, decode {:>7.1f} tok/s{}\n",
                   candidate.settings, candidate.prefill_tokens_per_second,
                   candidate.decode_tokens_per_second, candidate.chosen ? "  <- used" : "");
  }
  if (!report.peer_settings.empty()) {
    fmt::format_to(out, "llama.cpp runs with {}\n", report.peer_settings);
  }
  fmt::format_to(out, "\n");
  fmt::format_to(out, fmt::runtime(kRowFormat), "engine", "kv", "budget", "depth", "seqs",
                 "prefill/s", "ratio", "decode/s", "ratio", "/dense", "step ms", "dense", "attn",
                 "select", "other", "KV read", "bw", "attn/x");
  for (const BenchRun& run : report.runs) {
    std::optional<double> share_percent;
    if (run.bandwidth_share) {
      share_percent = *run.bandwidth_share * 100;
    }
    fmt::format_to(
        out, fmt::runtime(kRowFormat), run.engine, run.kv_type,
        run.token_budget > 0 ? std::to_string(run.token_budget) : "-", run.depth, run.concurrency,
        fmt::format("{:.1f}", run.prefill_tokens_per_second), cell(run.prefill_ratio, 2, "x"),
        fmt::format("{:.1f}", run.decode_tokens_per_second), cell(run.decode_ratio, 2, "x"),
        cell(run.decode_over_dense, 2, "x"), fmt::format("{:.2f}", run.step_ms.total),
        cell(run.step_ms.dense, 2), cell(run.step_ms.attention, 2), cell(run.step_ms.select, 2),
        cell(run.step_ms.other, 2), bytes_cell(run.kv_read_bytes), cell(share_percent, 0, "%"),
        cell(run.attention_over_floor, 2));
  }
  for (const BenchRun& run : report.runs) {
    if (run.running > 0) {
      fmt::format_to(out,
                     "\n{} of {} tokens x {}: {} at a time fit under the cap of {}, the others "
                     "wait",
                     run.kv_mode, run.depth, run.concurrency, run.running,
                     format_bytes(run.kv_fast_bytes));
    }
    if (!run.home.empty()) {
      fmt::format_to(
          out,
          "\n{} {} of {} tokens x {}: lookahead {}, cap {}, home {}; {:.1f} tok/s; a step "
          "misses {:.0f} blocks ({:.1f} %), reads {}, writes {}, waits {} ms (part of "
          "select); {:.1f} % of its layers are ready",
          run.kv_mode, run.token_budget, run.depth, run.concurrency, run.variant,
          format_bytes(run.kv_fast_bytes), run.home, run.decode_tokens_per_second, run.home_misses,
          run.home_miss_share * 100, format_bytes(static_cast<std::int64_t>(run.home_read_bytes)),
          format_bytes(static_cast<std::int64_t>(run.home_written_bytes)),
          cell(run.step_ms.stall, 2), run.layers_ready_share * 100);
    }
    if (run.lookahead) {
      text += lookahead_lines(*run.lookahead);
    }
    if (run.agreement) {
      text += agreement_lines(*run.agreement);
    }
    if (run.blocks_skipped > 0) {
      fmt::format_to(
          out, "; {}: skips {:.0f} blocks with {:.2f} % of the attention, {:.2f} % where most",
          run.on_miss, run.blocks_skipped, run.missed_mass_mean * 100, run.missed_mass_worst * 100);
    }
  }
  for (const BenchCrossover& crossover : find_crossovers(report.runs)) {
    fmt::format_to(out, "\nbudget {} at depth {} ({}{}{}): ", crossover.token_budget,
                   crossover.depth, crossover.kv_type, crossover.variant.empty() ? "" : ", ",
                   crossover.variant);
    if (crossover.concurrency) {
      fmt::format_to(out, "sparse is at least as fast as dense from {} sequences on",
                     *crossover.concurrency);
    } else {
      fmt::format_to(out, "sparse is slower than dense at the largest number of sequences");
    }
  }
  fmt::format_to(
      out,
      "\nprefill/s and decode/s: tokens per second, medians; decode of all sequences together.\n"
      "budget: tokens that a row of sparse decode attends to, /dense: its speed over our dense "
      "decode; "
      "select is part of attn.\nKV read: keys, values and index of a step. bw: share of the "
      "bandwidth that a step's KV and weights "
      "take.\nattn/x: attention time as a multiple of the time to read the KV at that "
      "bandwidth.\n");
  return text;
}

}  // namespace karez
