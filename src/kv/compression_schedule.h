// When the windows of a sequence are compressed: a function of its positions alone, so that a
// sequence is compressed alike in any company, and again when it is computed anew.
//
//   0 ... first_position | window 0 | window 1 | ... | recent_tokens | the next row
//
// Window w is compressed when the sequence has publication_of(w) tokens, so when recent_tokens lie
// behind it. Rows of that position and after see it compressed, rows before it do not.
// Thread: a value.
#pragma once

#include <cstdint>

#include "kv/kv_types.h"

namespace karez {

struct CompressionSchedule {
  int first_position = 0;  // of window 0; a multiple of kBlockSize
  int window_tokens = 0;   // a multiple of kBlockSize; 0: nothing is ever compressed
  int kept_tokens = 0;     // of a window, for each KV head; a multiple of kBlockSize
  int recent_tokens = 0;
  bool archives = false;  // what is not kept becomes archived pages instead of being dropped

  bool is_on() const { return window_tokens > 0; }
  std::int64_t begin_of(int window) const {
    return first_position + std::int64_t{window} * window_tokens;
  }
  std::int64_t publication_of(int window) const {
    return begin_of(window) + window_tokens + recent_tokens;
  }
  int gone_tokens_each() const { return archives ? 0 : window_tokens - kept_tokens; }
};

}  // namespace karez
