#include "sampling/sampling_params.h"

#include <fmt/format.h>

#include <cmath>
#include <string>

#include "sampling/utf8.h"

namespace karez {
namespace {

struct Range {
  const char* flag;
  const char* field;
  float value;
  float low;
  float high;
};

}  // namespace

Expected<void> SamplingParams::validate() const {
  // Beyond 1e6 a temperature is uniform noise, and the quotient logit / temperature loses its
  // order.
  if (!(temperature <= 1e6F) || std::isinf(temperature)) {
    return fail_field("temperature",
                      fmt::format("temperature is {}, allowed are values up to 1000000; 0 and less "
                                  "pick the most likely token",
                                  temperature));
  }
  for (const Range& range : {
           Range{"top-p", "top_p", top_p, 0.0F, 1.0F},
           Range{"min-p", "min_p", min_p, 0.0F, 1.0F},
           Range{"typical", "typical_p", typical_p, 0.0F, 1.0F},
           Range{"presence-penalty", "presence_penalty", presence_penalty, -2.0F, 2.0F},
           Range{"frequency-penalty", "frequency_penalty", frequency_penalty, -2.0F, 2.0F},
           Range{"repeat-penalty", "repeat_penalty", repeat_penalty, 0.01F, 100.0F},
       }) {
    // NaN is in no range.
    if (!(range.value >= range.low && range.value <= range.high)) {
      return fail_field(range.field, fmt::format("{} is {}, allowed are {} to {}", range.flag,
                                                 range.value, range.low, range.high));
    }
  }
  if (top_k < 0) {
    return fail_field("top_k", fmt::format("top-k is {}, allowed are 0 (off) and more", top_k));
  }
  if (repeat_last_n < -1) {
    return fail_field(
        "repeat_last_n",
        fmt::format("repeat-last-n is {}, allowed are -1 (all), 0 (off) and more", repeat_last_n));
  }
  for (const std::string& text : stop) {
    if (text.empty()) {
      return fail_field(
          "stop",
          "stop is an empty text, which would end every answer at once; leave it out instead");
    }
    if (const auto offset = first_invalid_utf8(text)) {
      return fail_field("stop", fmt::format("stop is not UTF-8 at byte {}", *offset));
    }
  }
  return {};
}

}  // namespace karez
