// What the server sees of the engine: submit a request, get its events, cancel it.
//
// An interface, so that the server and its tests can use a fake.
// Thread: every call from any thread. Events of one request arrive in order, from the engine
// thread: a callback hands them over (to an executor, a queue) and returns at once. It is not
// called again after an event with `finished` for every choice, or after cancel() has returned an
// event with kCancelled.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/compression_stats.h"
#include "engine/kv_map.h"
#include "engine/kv_peer_stats.h"
#include "engine/missed_mass.h"
#include "engine/prefix_restorer.h"
#include "kv/residency.h"
#include "kv/store/prefix_store.h"
#include "sched/request.h"
#include "spec/speculation.h"

namespace karez {

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;
  std::string bytes;  // of the token's text; may be part of a UTF-8 character
};

struct GeneratedToken {
  TokenLogprob chosen;
  std::vector<TokenLogprob> alternatives;  // descending, num_logprobs of them
};

struct RequestTimings {
  double queue_seconds = 0;    // submit to first scheduled
  double prefill_seconds = 0;  // first scheduled to first token
  double decode_seconds = 0;   // first token to last
};

struct GenerationEvent {
  int choice = 0;
  std::string text;                    // whole UTF-8 characters; nothing of a stop string
  std::vector<GeneratedToken> tokens;  // those whose text is in `text` or was held back before
  std::optional<FinishReason> finished;
  std::optional<Status> error;  // with FinishReason::kError
  // True on every event; final with the last one.
  int prompt_tokens = 0;
  int cached_tokens = 0;     // of the prompt, found in the prefix cache
  int generated_tokens = 0;  // of this choice
  // Of the whole request so far, with a tier below the fast one: blocks (16 tokens of a layer and
  // KV head) that its rows read, and those that had to be loaded first.
  std::int64_t kv_blocks_read = 0;
  std::int64_t kv_blocks_loaded = 0;
  // Of the whole request so far, with speculative decoding: drafts that were verified, and
  // accepted.
  std::int64_t draft_tokens = 0;
  std::int64_t accepted_draft_tokens = 0;
  MissedMass kv_missed;  // under a bound
  // With `finished` of a request that produces: where its KV waits, every field set (role
  // kProduce).
  std::optional<KvTransfer> kv_transfer;
  std::string stop_match;  // the stop string that ended it, if one did
  RequestTimings timings;
};

struct EngineStats {
  int requests_running = 0;
  int requests_waiting = 0;
  std::int64_t slots_used = 0;  // by requests
  std::int64_t slots_idle = 0;  // hold cached prompts that no request uses; requests may take them
  std::int64_t slots_total = 0;
  std::int64_t slot_bytes = 0;
  std::int64_t prefix_cache_queries_tokens = 0;  // prompt tokens looked up
  std::int64_t prefix_cache_hits_tokens = 0;     // of them found
  std::int64_t preemptions = 0;                  // demotions included
  std::int64_t demotions = 0;      // to the tier below the fast one, nothing is computed again
  bool has_home = false;           // there is such a tier
  ResidencyStats tiers;            // what moved between the two
  bool has_speculation = false;    // there is a drafter
  SpeculationStats speculation;    // what came of it
  bool has_store = false;          // prefix blocks outlive the process
  PrefixStoreStats store;          // where they are kept
  PrefixRestorerStats restores;    // what came back
  KvPeerStats peers;               // of a prefill/decode split
  MissedMass missed;               // what rows went without, under a bound
  CompressionStats compression;    // of aged windows; all zero if nobody asked for it
  std::int64_t prompt_tokens = 0;  // computed or found, since start
  std::int64_t generated_tokens = 0;
  std::int64_t steps = 0;
  double step_seconds = 0;     // inside steps, since start
  double forward_seconds = 0;  // of these, in ModelRunner::forward()
};

class EngineClient {
 public:
  using Callback = std::function<void(const GenerationEvent&)>;

  virtual ~EngineClient() = default;

  // Fails: kInvalidArgument (prompt longer than the context, bad parameter), kResourceExhausted
  // (the prompt can never fit the fast tier), kUnavailable (the queue is full or the engine is
  // shutting down). The first two have Status::field(), in the API's words; of fields with several
  // names: prompt, max_tokens, repeat_penalty, top_logprobs, grammar (a schema is one too).
  // The callback is called only after success.
  virtual Expected<RequestId> submit(Request request, Callback callback) = 0;
  // Whether there is room for a request now, so that one need not be read in vain. submit() looks
  // again. Fails: kUnavailable, as submit().
  virtual Expected<void> check_queue() const { return {}; }
  // Ends a request in any phase within a step. Unknown ids are ignored: it may just have finished.
  virtual void cancel(RequestId id) = 0;
  virtual EngineStats stats() const = 0;
  // Of the request that was first in the last step, or, as it is made on demand, of a step before.
  // Null: none yet, or this engine makes none.
  virtual std::shared_ptr<const KvMap> kv_map() { return nullptr; }
};

}  // namespace karez
