#include "sampling/sampling_params.h"

#include <fmt/format.h>

#include <cmath>
#include <string_view>

#include "sampling/utf8.h"

namespace karez {
namespace {

// Empty if value is in [low, high]. NaN is in no range.
std::string out_of_range(std::string_view field, float value, float low, float high) {
  if (value >= low && value <= high) {
    return {};
  }
  return fmt::format("{} is {}, allowed are {} to {}", field, value, low, high);
}

std::string first_problem(const SamplingParams& p) {
  // Beyond 1e6 a temperature is uniform noise, and the quotient logit / temperature loses its
  // order.
  if (!(p.temperature <= 1e6F) || std::isinf(p.temperature)) {
    return fmt::format(
        "temperature is {}, allowed are values up to 1000000; 0 and less pick the "
        "most likely token",
        p.temperature);
  }
  for (const std::string& problem : {
           out_of_range("top-p", p.top_p, 0.0F, 1.0F),
           out_of_range("min-p", p.min_p, 0.0F, 1.0F),
           out_of_range("typical", p.typical_p, 0.0F, 1.0F),
           out_of_range("presence-penalty", p.presence_penalty, -2.0F, 2.0F),
           out_of_range("frequency-penalty", p.frequency_penalty, -2.0F, 2.0F),
           out_of_range("repeat-penalty", p.repeat_penalty, 0.01F, 100.0F),
       }) {
    if (!problem.empty()) {
      return problem;
    }
  }
  if (p.top_k < 0) {
    return fmt::format("top-k is {}, allowed are 0 (off) and more", p.top_k);
  }
  if (p.repeat_last_n < -1) {
    return fmt::format("repeat-last-n is {}, allowed are -1 (all), 0 (off) and more",
                       p.repeat_last_n);
  }
  for (const std::string& text : p.stop) {
    if (text.empty()) {
      return "stop is an empty text, which would end every answer at once; leave it out instead";
    }
    if (const auto offset = first_invalid_utf8(text)) {
      return fmt::format("stop is not UTF-8 at byte {}", *offset);
    }
  }
  return {};
}

}  // namespace

Expected<void> SamplingParams::validate() const {
  std::string problem = first_problem(*this);
  if (!problem.empty()) {
    return fail(StatusCode::kInvalidArgument, std::move(problem));
  }
  return {};
}

}  // namespace karez
