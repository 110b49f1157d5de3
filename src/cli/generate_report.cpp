#include "cli/generate_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/bytes.h"
#include "cli/terminal.h"

namespace karez {
namespace {

double rate(int count, double seconds) { return seconds > 0 ? count / seconds : 0; }

std::string_view name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "unknown";
}

std::string_view explain(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "the answer is complete";
    case FinishReason::kLength:
      return "no room or no tokens left (-n, -c, --kv-fast-bytes)";
    case FinishReason::kCancelled:
      return "interrupted";
    case FinishReason::kError:
      return "failed";
  }
  return "";
}

}  // namespace

std::string to_table(const GenerateReport& report) {
  const GenerationResult& r = report.result;
  std::string text;
  const auto row = [&](std::string_view what, int tokens, double seconds, double per_second) {
    text += fmt::format("{:<10} {:>7} tokens {:>12} {:>9} tokens/s\n", what, tokens,
                        format_seconds(seconds), format_rate(per_second));
  };
  row("prompt", r.prompt_tokens, r.prefill_seconds, rate(r.prompt_tokens, r.prefill_seconds));
  row("generated", r.generated_tokens, r.decode_seconds, rate(r.decode_tokens, r.decode_seconds));
  if (r.speculation) {
    text += fmt::format("{:<10} {}: {} of {} drafts accepted, {} steps\n", "drafts",
                        to_string(report.spec_type), r.speculation->accepted_tokens,
                        r.speculation->draft_tokens, r.decode_steps);
  }
  text +=
      fmt::format("{:<10} {} of {} ({}, context {})\n", "KV cache", format_bytes(r.kv_used_bytes),
                  format_bytes(r.kv_cap_bytes), to_string(report.kv_type), report.context_tokens);
  const auto tier_row = [&](std::string_view what, const GenerationResult::TierTraffic& traffic) {
    const double share = traffic.blocks_read == 0 ? 0
                                                  : static_cast<double>(traffic.blocks_loaded) /
                                                        static_cast<double>(traffic.blocks_read);
    text += fmt::format("{:<10} wrote {}, loaded {} ({:.1f} % of the blocks read) in {}\n", what,
                        format_bytes(traffic.bytes_written), format_bytes(traffic.bytes_read),
                        share * 100, format_seconds(traffic.stall_seconds));
  };
  if (r.answer_traffic) {
    text += fmt::format("{:<10} {} in {}\n", "KV home",
                        format_bytes(r.answer_traffic->home_used_bytes), report.home);
    tier_row("  prompt", *r.prompt_traffic);
    tier_row("  answer", *r.answer_traffic);
    if (report.on_miss.bound) {
      text +=
          fmt::format("{:<10} {} blocks with {:.2f} % of the attention, {:.2f} % where most ({})\n",
                      "  skipped", report.missed.blocks_skipped, report.missed.mean() * 100,
                      report.missed.worst * 100, to_string(report.on_miss));
    }
  }
  if (r.compression) {
    const CompressionStats& c = *r.compression;
    text += fmt::format("{:<10} {} windows, {} less KV, {} of queries kept, {}\n", "compressed",
                        c.windows, format_bytes(c.bytes_saved), format_bytes(c.query_bytes),
                        format_seconds(c.seconds));
  }
  text += fmt::format("{:<10} {}, {} threads\n", "load", format_seconds(report.load_seconds),
                      report.threads);
  text += fmt::format("{:<10} {}: {}\n", "end", name_of(r.finish_reason), explain(r.finish_reason));
  return text;
}

std::string to_json(const GenerateReport& report) {
  const GenerationResult& r = report.result;
  const StepTimes& times = report.decode_times;
  const double per_step_ms = times.steps > 0 ? 1000.0 / static_cast<double>(times.steps) : 0;
  const auto traffic_json = [](const std::optional<GenerationResult::TierTraffic>& traffic) {
    return traffic ? nlohmann::json{{"home_used_bytes", traffic->home_used_bytes},
                                    {"blocks_read", traffic->blocks_read},
                                    {"blocks_loaded", traffic->blocks_loaded},
                                    {"bytes_read", traffic->bytes_read},
                                    {"bytes_written", traffic->bytes_written},
                                    {"stall_seconds", traffic->stall_seconds}}
                   : nlohmann::json(nullptr);
  };
  const auto speculation_json = [](const std::optional<SpeculationStats>& stats) {
    return stats ? nlohmann::json{{"draft_tokens", stats->draft_tokens},
                                  {"accepted_tokens", stats->accepted_tokens},
                                  {"switched_off", stats->switched_off},
                                  {"propose_seconds", stats->propose_seconds}}
                 : nlohmann::json(nullptr);
  };
  // Of all steps that were not longer; 1: of all.
  const auto step_ms_at = [&](double share) {
    if (r.step_seconds.empty()) {
      return 0.0;
    }
    std::vector<float> sorted = r.step_seconds;
    std::ranges::sort(sorted);
    const double index = share * static_cast<double>(sorted.size() - 1);
    return static_cast<double>(sorted[static_cast<std::size_t>(index)]) * 1000;
  };
  nlohmann::json run = {
      {"engine", "karez"},
      {"model", report.model},
      {"kv_mode", report.token_budget > 0 ? "sparse" : "dense"},
      {"token_budget", report.token_budget},
      {"home", report.home},
      {"prompt_traffic", traffic_json(r.prompt_traffic)},
      {"answer_traffic", traffic_json(r.answer_traffic)},
      {"kv_type", to_string(report.kv_type)},
      {"depth", r.prompt_tokens},
      {"concurrency", 1},
      {"threads", report.threads},
      {"prefill_tokens_per_second", rate(r.prompt_tokens, r.prefill_seconds)},
      {"decode_tokens_per_second", rate(r.decode_tokens, r.decode_seconds)},
      {"decode_steps", r.decode_steps},
      {"spec_type", to_string(report.spec_type)},
      {"speculation", speculation_json(r.speculation)},
      {"step_ms",
       {{"total", times.total * per_step_ms},
        {"dense", times.dense * per_step_ms},
        {"attention", times.attention * per_step_ms},
        {"other", times.other * per_step_ms},
        {"median", step_ms_at(0.5)},
        {"p99", step_ms_at(0.99)},
        {"p99.9", step_ms_at(0.999)},
        {"longest", step_ms_at(1)}}},
      {"kv_fast_bytes", r.kv_cap_bytes},
      {"kv_used_bytes", r.kv_used_bytes},
      {"context_tokens", report.context_tokens},
      {"prompt_tokens", r.prompt_tokens},
      {"generated_tokens", r.generated_tokens},
      {"prefill_seconds", r.prefill_seconds},
      {"decode_seconds", r.decode_seconds},
      {"load_seconds", report.load_seconds},
      {"seed", report.seed},
      {"finish_reason", name_of(r.finish_reason)},
  };
  if (report.on_miss.bound) {
    run["on_miss"] = to_string(report.on_miss);
    run["blocks_skipped"] = report.missed.blocks_skipped;
    run["missed_mass_mean"] = report.missed.mean();
    run["missed_mass_worst"] = report.missed.worst;
  }
  if (r.compression) {
    const CompressionStats& c = *r.compression;
    run["compression"] = {{"windows", c.windows},
                          {"pairs_kept", c.pairs_kept},
                          {"pairs_archived", c.pairs_archived},
                          {"pairs_dropped", c.pairs_dropped},
                          {"pairs_brought_back", c.pairs_brought_back},
                          {"bytes_saved", c.bytes_saved},
                          {"query_bytes", c.query_bytes},
                          {"longest_seconds", c.longest_seconds},
                          {"seconds", c.seconds}};
  }
  // A file name need not be UTF-8.
  return nlohmann::json{{"runs", nlohmann::json::array({run})}}.dump(
             2, ' ', false, nlohmann::json::error_handler_t::replace) +
         "\n";
}

}  // namespace karez
