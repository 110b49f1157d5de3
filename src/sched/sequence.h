// The mutable state of one choice of one request, as the scheduler keeps it.
//
// A request with n choices is one sequence until its prompt is computed, then n of them, which
// share the prompt's KV.
//
//   waiting --admit--> running --update--> gone
//      ^------preempt-----/
//
// A preempted sequence gives up its KV and is computed again, or is demoted: its KV stays open at
// home.
//
// Thread: the scheduler's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/token.h"
#include "kv/compression_schedule.h"
#include "kv/kv_types.h"
#include "kv/prefix_cache.h"
#include "sched/request.h"

namespace karez {

// Guesses of what follows a sequence's last token (speculative decoding).
struct Drafts {
  std::vector<TokenId> tokens;
  int num_hints = 0;  // the last of them: computed for what they would read, not verified

  int size() const { return static_cast<int>(tokens.size()); }
  void shorten(int count) {
    num_hints = std::clamp(num_hints - (size() - count), 0, count);
    tokens.resize(static_cast<std::size_t>(count));
  }
};

struct Sequence {
  RequestId request = 0;
  int priority = 0;
  int choice = 0;
  int num_choices = 1;  // that this sequence stands for: more than 1 until the prompt is computed
  bool use_prefix_cache = true;
  std::string cache_salt;
  std::vector<TokenId> tokens;  // the prompt, then what was generated
  int num_prompt_tokens = 0;
  int cached_tokens = -1;  // of the prompt, found instead of computed; -1: not looked up yet

  // Its KV could not be read from home: so often since it last went on for a block, and how many
  // tokens it had when it was lost.
  int times_lost = 0;
  std::size_t tokens_when_lost = 0;

  // Only while it runs or is demoted:
  SequenceId kv;
  int num_computed_tokens = 0;  // their KV is written
  int num_remote_tokens = 0;    // of these the first, at home with somebody else
  PrefixChain chain;
  Drafts drafts;  // of the next step, or of the one that is computed
  int num_compressed_windows = 0;

  CompressionSchedule compression;
  bool compression_stopped = false;  // there was no room for it: it goes on without
  // Of windows that were compressed early: where, also when it is computed again.
  std::map<int, int> early_publications;

  int num_remaining_tokens() const { return static_cast<int>(tokens.size()) - num_computed_tokens; }
  // All but its last token is computed, and that one was generated.
  bool is_decoding() const {
    return num_remaining_tokens() == 1 && num_computed_tokens >= num_prompt_tokens;
  }
  Publication next_publication() const {
    Publication next = compression.publication(num_compressed_windows);
    const auto early = early_publications.find(num_compressed_windows);
    if (early != early_publications.end()) {
      next = {early->second, std::min<std::int64_t>(early->second, next.queries_end)};
    }
    return next;
  }
  // Until a window is compressed no row behind its publication is computed.
  int num_tokens_before_compression() const {
    return compression.is_on() && !compression_stopped
               ? clamp_to_int(next_publication().position - num_computed_tokens)
               : std::numeric_limits<int>::max();
  }
  int num_computable_tokens() const {
    return std::min(num_remaining_tokens(), num_tokens_before_compression());
  }
  // The first tokens whose KV is that of the same tokens in any prompt.
  int num_uncompressed_tokens() const {
    if (!compression.is_on()) {
      return std::numeric_limits<int>::max();
    }
    return num_compressed_windows > 0 ? compression.first_position
                                      : clamp_to_int(next_publication().position);
  }

  // The first tokens whose KV may be another sequence's: what lies behind the first window's begin
  // is computed, for its queries.
  int num_findable_tokens() const {
    return compression.is_on() ? compression.first_position : std::numeric_limits<int>::max();
  }

 private:
  static int clamp_to_int(std::int64_t value) {
    return static_cast<int>(std::min<std::int64_t>(value, std::numeric_limits<int>::max()));
  }
};

}  // namespace karez
