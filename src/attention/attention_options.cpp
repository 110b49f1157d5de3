#include <fmt/format.h>

#include <cmath>
#include <string>
#include <utility>

#include "attention/kernel_table.h"
#include "attention/paged_attention.h"

namespace karez {

Expected<void> AttentionOptions::validate(const KVCacheSpec& spec) const {
  const auto invalid = [](std::string message) {
    return fail(StatusCode::kInvalidArgument, std::move(message));
  };
  if (num_heads <= 0 || num_heads % spec.num_kv_heads != 0 ||
      num_heads / spec.num_kv_heads > kTileVectors) {
    return invalid(fmt::format(
        "attention: num_heads is {}, allowed are multiples of num_kv_heads = {} up to {} times it",
        num_heads, spec.num_kv_heads, kTileVectors));
  }
  if (!std::isfinite(scale) || scale <= 0.0F) {
    return invalid(fmt::format("attention: scale is {}, allowed are finite values above 0", scale));
  }
  if (!std::isfinite(logit_softcap) || logit_softcap < 0.0F) {
    return invalid(fmt::format("attention: logit_softcap is {}, allowed are finite values from 0",
                               logit_softcap));
  }
  for (const auto& [name, value] : {std::pair{"token_budget", sparse.token_budget},
                                    {"sink_tokens", sparse.sink_tokens},
                                    {"dense_layers", sparse.dense_layers},
                                    {"runners_up", sparse.runners_up}}) {
    if (value < 0) {
      return invalid(fmt::format("attention: {} is {}, allowed are values from 0", name, value));
    }
  }
  if (sparse.recent_window < 1) {
    return invalid(fmt::format("attention: recent_window is {}, allowed are values from 1",
                               sparse.recent_window));
  }
  if (max_threads < 1) {
    return invalid(
        fmt::format("attention: max_threads is {}, allowed are values from 1", max_threads));
  }
  if (cpu_level > detected_cpu_level()) {
    return invalid(fmt::format("attention: cpu_level is {}, this processor supports up to {}",
                               to_string(cpu_level), to_string(detected_cpu_level())));
  }
  return {};
}

}  // namespace karez
