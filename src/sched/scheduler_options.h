// The budgets of a step and the order of requests.
//
// Thread: a value.
#pragma once

#include <limits>

#include "base/status.h"

namespace karez {

enum class SchedulingPolicy {
  kFcfs,      // in the order of arrival
  kPriority,  // lower Request::priority first, in the order of arrival among equals
};

struct SchedulerOptions {
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  // Rows of one step, of all sequences together. >= 1.
  int max_num_batched_tokens = 512;
  // Sequences that run at once; a request with n choices counts n times. >= 1.
  int max_num_seqs = 64;
  // Prompt tokens of a step in which others generate. >= 1. The time of a step is what a reader
  // waits between two tokens, and prompt tokens are most of it. 128 rows are enough for matrix
  // products to run at nearly full speed, so a smaller step costs prefill throughput, and a larger
  // one only makes readers wait.
  int max_prefill_tokens_beside_decodes = 128;

  // Generated tokens up to this position have the KV that they would have in a prompt; those behind
  // it were computed with sparse attention, and the prefix cache does not offer them.
  int max_dense_tokens = std::numeric_limits<int>::max();

  // With a home tier: the tokens of a decoding sequence that have to fit into the fast tier besides
  // those of all others that run (its floor). 0: all, which is right if its rows read everything.
  int decode_floor_tokens = 0;
  // With a home tier: what one decoding row reads at most of a layer and KV head, in tokens of
  // whole blocks. An answer goes on while so much fits into the fast tier beside what a step
  // writes, and then ends. 0: all that the sequence holds, which is right if a layer reads
  // everything.
  int decode_read_tokens = 0;

  // Fails: kInvalidArgument naming the field, its value and the allowed range.
  Expected<void> validate() const;
};

}  // namespace karez
