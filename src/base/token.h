// A token id of a model's vocabulary. Never negative where a token is meant.
#pragma once

#include <cstdint>

namespace karez {

using TokenId = std::int32_t;

}  // namespace karez
