#include "engine/bench_peer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <memory>

#include "engine/bench_engine.h"
#include "model/llama_reference.h"

namespace karez {
namespace {

constexpr int kTrialSteps = 8;
constexpr int kTrialTurns = 3;
constexpr int kLargeStepTokens = 2048;
constexpr double kClearlyFaster = 1.03;

std::vector<PeerSettings> candidates() {
  return {
      {.flash_attention = false, .cache_type_k = "f16", .cache_type_v = "f16"},
      {.flash_attention = false, .cache_type_k = "q8_0", .cache_type_v = "f16"},
      {.flash_attention = false, .cache_type_k = "bf16", .cache_type_v = "f16"},
      {.flash_attention = true, .cache_type_k = "f16", .cache_type_v = "f16"},
      {.flash_attention = true, .cache_type_k = "q8_0", .cache_type_v = "q8_0"},
  };
}

Expected<BenchPeerCandidate> try_settings(const std::string& model_path, int num_threads,
                                          const PeerSettings& settings, const BenchTokens& tokens) {
  const auto reference = LlamaReference::load(
      model_path, {.num_threads = num_threads,
                   .context_tokens = static_cast<int>(tokens.prompt.size()) + kTrialSteps,
                   .num_sequences = 1,
                   .batch_tokens = settings.step_tokens,
                   .max_output_rows = 1,
                   .cache_type_k = settings.cache_type_k,
                   .cache_type_v = settings.cache_type_v,
                   .flash_attention = settings.flash_attention});
  if (!reference) {
    return fail(reference.error());
  }
  const auto engine = make_llama_bench_engine(**reference, settings.step_tokens);
  const Expected<double> prefill_seconds = engine->prefill(tokens.prompt);
  if (!prefill_seconds) {
    return fail(prefill_seconds.error());
  }
  if (auto ready = engine->make_copies(1); !ready) {
    return fail(ready.error());
  }
  const std::size_t steps = std::min<std::size_t>(kTrialSteps, tokens.continuation.size());
  double best_seconds = 0;
  for (int turn = 0; turn < kTrialTurns; ++turn) {
    const auto decoded = engine->decode(std::span(tokens.continuation).first(steps));
    if (!decoded) {
      return fail(decoded.error());
    }
    best_seconds = turn == 0 ? decoded->seconds : std::min(best_seconds, decoded->seconds);
  }
  return BenchPeerCandidate{
      .settings = settings.to_string(),
      .prefill_tokens_per_second = static_cast<double>(tokens.prompt.size()) / *prefill_seconds,
      .decode_tokens_per_second = static_cast<double>(steps) / best_seconds};
}

Status unknown_part(std::string_view part) {
  return Status(StatusCode::kInvalidArgument,
                fmt::format("--compare-settings: '{}' is not one of fa=on|off, k=TYPE, v=TYPE, "
                            "ub=TOKENS (1 to 65536)",
                            part));
}

Expected<void> parse_part(std::string_view part, PeerSettings& settings) {
  const std::size_t equals = part.find('=');
  const std::string_view key = part.substr(0, equals);
  const std::string_view value =
      equals == std::string_view::npos ? std::string_view() : part.substr(equals + 1);
  if (key == "fa" && (value == "on" || value == "off")) {
    settings.flash_attention = value == "on";
  } else if (key == "k" && !value.empty()) {
    settings.cache_type_k = value;
  } else if (key == "v" && !value.empty()) {
    settings.cache_type_v = value;
  } else if (key == "ub") {
    constexpr int kMaxStepTokens = 65536;
    int tokens = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), tokens);
    if (error != std::errc() || end != value.data() + value.size() || tokens < 1 ||
        tokens > kMaxStepTokens) {
      return fail(unknown_part(part));
    }
    settings.step_tokens = tokens;
  } else {
    return fail(unknown_part(part));
  }
  return {};
}

}  // namespace

std::string PeerSettings::to_string() const {
  return fmt::format("fa={},k={},v={},ub={}", flash_attention ? "on" : "off", cache_type_k,
                     cache_type_v, step_tokens);
}

std::string PeerSettings::kv_type() const {
  return fmt::format("{}/{}", cache_type_k, cache_type_v);
}

Expected<PeerSettings> parse_peer_settings(std::string_view text) {
  PeerSettings settings;
  while (true) {
    const std::size_t comma = text.find(',');
    if (auto parsed = parse_part(text.substr(0, comma), settings); !parsed) {
      return fail(parsed.error());
    }
    if (comma == std::string_view::npos) {
      return settings;
    }
    text.remove_prefix(comma + 1);
  }
}

Expected<PeerChoice> find_best_peer_settings(const std::string& model_path, int num_threads,
                                             const BenchTokens& tokens,
                                             const BenchProgress& progress) {
  std::vector<PeerSettings> trials = candidates();
  const auto num_trials = static_cast<double>(trials.size() + 1);
  PeerChoice choice;
  std::size_t best = 0;
  for (std::size_t i = 0; i < trials.size(); ++i) {
    if (progress) {
      progress(fmt::format("llama.cpp tries {}", trials[i].to_string()),
               static_cast<double>(i) / num_trials);
    }
    const auto tried = try_settings(model_path, num_threads, trials[i], tokens);
    if (!tried) {
      return fail(tried.error());
    }
    choice.tried.push_back(*tried);
    if (tried->decode_tokens_per_second > choice.tried[best].decode_tokens_per_second) {
      best = i;
    }
  }
  PeerSettings larger = trials[best];
  larger.step_tokens = kLargeStepTokens;
  if (progress) {
    progress(fmt::format("llama.cpp tries {}", larger.to_string()), 1 - 1 / num_trials);
  }
  const auto tried = try_settings(model_path, num_threads, larger, tokens);
  if (!tried) {
    return fail(tried.error());
  }
  trials.push_back(larger);
  choice.tried.push_back(*tried);
  if (tried->prefill_tokens_per_second >
      kClearlyFaster * choice.tried[best].prefill_tokens_per_second) {
    best = trials.size() - 1;
  }
  choice.settings = trials[best];
  choice.tried[best].chosen = true;
  return choice;
}

}  // namespace karez
