// When the windows of a sequence are compressed: a function of its positions alone, so that a
// sequence is compressed alike in any company, and again when it is computed anew.
//
//   0 ... first_position | window 0 | window 1 | ... | recent_tokens | the next row
//
// Window w is compressed when the sequence has publication_of(w) tokens, so when recent_tokens lie
// behind it. Rows of that position and after see it compressed, rows before it do not.
//
// Where slots are short a window may be compressed earlier; the sequence then remembers where it
// was, so that it is the same when it is computed anew.
// Thread: values.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kv/kv_types.h"

namespace karez {

// Where a window is compressed, and the position from which on queries do not count in its scores:
// the work is done in the time between the two.
struct Publication {
  std::int64_t position = 0;
  std::int64_t queries_end = 0;
};

struct CompressionSchedule {
  int first_position = 0;  // of window 0; a multiple of kBlockSize
  int window_tokens = 0;   // a multiple of kBlockSize; 0: nothing is ever compressed
  int kept_tokens = 0;     // of a window, for each KV head; a multiple of kBlockSize
  int recent_tokens = 0;
  int pages_per_block = 0;  // archived pages of what is not kept; 0: it is dropped

  bool is_on() const { return window_tokens > 0; }
  // Whether a window is scored with the query of one of these rows.
  bool scores_with_rows(int first, int count) const {
    return is_on() && std::int64_t{first} + count > first_position;
  }
  std::int64_t begin_of(int window) const {
    return first_position + std::int64_t{window} * window_tokens;
  }
  std::int64_t publication_of(int window) const {
    return begin_of(window) + window_tokens + recent_tokens;
  }
  Publication publication(int window) const {
    const std::int64_t position = publication_of(window);
    return {position, position - recent_tokens / 2};
  }
  // Whether the window may be compressed at num_tokens already, when slots are short.
  bool may_be_early(int window, std::int64_t num_tokens) const {
    return num_tokens >= earliest_of(window) && num_tokens < publication_of(window);
  }
  // Before that many tokens the window is not compressed, however short of slots.
  std::int64_t earliest_of(int window) const {
    return begin_of(window) + window_tokens + recent_tokens / 4;
  }
  // Blocks that take the place of a window's.
  int kept_blocks() const { return kept_tokens / kBlockSize; }
  int archived_pages() const {
    return pages_per_block == 0 ? 0 : (window_tokens - kept_tokens) / kBlockSize;
  }
  int archived_blocks() const {
    return pages_per_block == 0 ? 0 : (archived_pages() + pages_per_block - 1) / pages_per_block;
  }
  // What a sequence of so many tokens takes at most while it is computed, in tokens of blocks.
  std::int64_t most_tokens_held(std::int64_t num_tokens) const {
    const std::int64_t aged = num_tokens - recent_tokens - first_position;
    if (!is_on() || aged < window_tokens) {
      return num_tokens;
    }
    const std::int64_t compressed =
        aged / window_tokens * (kept_blocks() + archived_blocks()) * kBlockSize;
    return std::min(num_tokens, first_position + compressed + window_tokens + recent_tokens);
  }
};

}  // namespace karez
