// Which blocks of a sequence a row reads and writes: the arithmetic behind block tables.
//
// A row at position p of a layer with window w reads positions (p - w, p], of all when w is 0.
// Thread: pure functions.
#pragma once

#include <cstdint>

#include "kv/kv_types.h"

namespace karez {

// Blocks that hold num_tokens >= 0 tokens; the last may be partly filled.
constexpr std::int64_t num_blocks(std::int64_t num_tokens) {
  return num_tokens / kBlockSize + (num_tokens % kBlockSize != 0 ? 1 : 0);
}

// The first block that rows from `position` on read or write: every token of every block before it
// is at most position - window.
constexpr std::int64_t first_kept_block(std::int64_t position, std::int64_t window) {
  return window == 0 || position < window ? 0 : (position - window + 1) / kBlockSize;
}

}  // namespace karez
