// What a row that selects does about selected blocks that are not in the fast tier.
//
// Thread: a value, and functions without state.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace karez {

struct OnMiss {
  // Each list waits for so many of its missing blocks, the heaviest, and does without the others.
  // None: it waits for all, and results are those of a fast tier with room for everything.
  std::optional<int> bound;
};

// "wait" or "bounded=N". Fails: kInvalidArgument with the text and what is allowed.
Expected<OnMiss> parse_on_miss(std::string_view text);
std::string to_string(const OnMiss& on_miss);

}  // namespace karez
