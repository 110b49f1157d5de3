// Brings stored prefix blocks back for requests that are about to start.
//
//   hold() --find--> queued --its turn--> read, extend, copy, publish, chunk by chunk --> ready
//             \-- nothing there, too late, no room, an error: ready, and the rest is computed
//
// A request whose prompt the store may know further than the prefix cache is held back until its
// blocks are findable there; everybody else goes on. Then it starts as any other, and its normal
// lookup finds them. Nothing here fails: what is not restored is computed.
//
// A record that is not there any more, or bad, ends its restore. The rest of the prompt is
// computed, and may be as bad: the store is told to doubt it, so that what is bad is stored again
// now, and not found one by one.
//
// One prompt is restored at a time, so that equal ones are read once; reads are as far ahead as the
// store's staging allows. It takes slots that nobody runs short of: none that the next step may
// need, and it stops as soon as they get few.
//
// Thread: the engine's, between steps. Borrows all.
// Owns: the sequence that it fills, and whose blocks it holds until the next call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "attention/key_index.h"
#include "kv/kv_cache_manager.h"
#include "kv/prefix_cache.h"
#include "kv/store/prefix_store.h"
#include "sched/request.h"

namespace karez {

struct PrefixRestorerStats {
  std::int64_t hits = 0;    // requests whose prompt the store knew further
  std::int64_t misses = 0;  // requests that asked in vain
  std::int64_t restored_blocks = 0;
  std::int64_t restored_bytes = 0;
  double seconds = 0;  // from a request's turn to its last block, summed
};

class PrefixRestorer {
 public:
  // key_index: of kv's blocks; null: there is none. limit_seconds: that a request is held back at
  // most. clock: seconds.
  PrefixRestorer(KVCacheManager& kv, PrefixCache& cache, PrefixStore& store,
                 const KeyIndex* key_index, double limit_seconds, std::function<double()> clock);
  ~PrefixRestorer();
  PrefixRestorer(const PrefixRestorer&) = delete;
  PrefixRestorer& operator=(const PrefixRestorer&) = delete;

  // max_tokens: of the prompt, that may be found. False: it can start at once.
  [[nodiscard]] bool hold(const Request& request, std::size_t max_tokens);
  // It does not become ready any more.
  void cancel(RequestId request);

  // Goes on as far as it can without waiting. spare_slots: what the next step may take; a restore
  // leaves them. is_idle: nobody waits for the end of this call.
  void advance(std::int64_t spare_slots, bool is_idle);
  // Those that can start now, in the order of their turn.
  std::vector<RequestId> take_ready();

  std::size_t num_held() const { return held_.size(); }
  PrefixRestorerStats stats() const { return stats_; }
  // Whether sequences of it have slots; they give them back when others lack them.
  bool holds_slots() const;

 private:
  struct Held {
    const Request* request = nullptr;  // the caller keeps it
    double deadline = 0;
    std::vector<RecordKey> keys;  // of all blocks that may be found
    std::size_t found_end = 0;    // the store has blocks up to here
    std::optional<PrefixStore::Ticket> finding;
  };
  // The restore at hand.
  struct Turn {
    RequestId request = 0;
    SequenceId sequence;
    PrefixChain chain;
    std::size_t done = 0;  // blocks that the sequence has
    std::size_t next = 0;  // to be read
    std::size_t end = 0;
    double begin_seconds = 0;
    struct Read {
      PrefixStore::Ticket ticket = 0;
      bool has_result = false;
      std::optional<PrefixStore::Buffer> buffer;
      bool is_missing = false;
    };
    std::deque<Read> reads;  // of blocks [done, next)
  };

  void take_results();
  void begin_turn();
  void submit_reads();
  // True: something was done.
  bool take_blocks(std::int64_t spare_slots, std::size_t max_blocks);
  void end_turn();
  // What has not been read, or is not whole, of the prompt whose turn it is.
  void doubt_rest();
  void let_go(RequestId request);
  void close_last();

  KVCacheManager& kv_;
  PrefixCache& cache_;
  PrefixStore& store_;
  const KeyIndex* key_index_;
  double limit_seconds_;
  std::function<double()> clock_;
  std::unordered_map<RequestId, Held> held_;
  std::deque<RequestId> queue_;  // those with blocks to be read
  std::optional<Turn> turn_;
  SequenceId last_;  // of the turn before
  std::vector<RequestId> ready_;
  std::vector<PrefixStore::Result> results_;  // scratch
  PrefixRestorerStats stats_;
};

}  // namespace karez
