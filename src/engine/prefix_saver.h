// Stores prefix blocks as they become findable.
//
// What the prefix cache publishes is what a prompt of these tokens would have, so that is what is
// worth keeping: blocks of prompts and of answers. They are copied out of their slots, on the
// engine's thread; what finds no room in the store's queue is tried again with the sequence's next
// blocks, and given up with the sequence. A block that is at home only, or has fallen out of a
// window, is not stored, and nothing behind it: a record is found only through those before it.
//
// Thread: the engine's. Borrows all.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>

#include "kv/kv_cache_manager.h"
#include "kv/prefix_cache.h"
#include "kv/store/prefix_store.h"

namespace karez {

class PrefixSaver {
 public:
  // unix_ns: the time. All must outlive it.
  PrefixSaver(KVCacheManager& kv, PrefixCache& cache, PrefixStore& store,
              std::function<std::int64_t()> unix_ns);
  ~PrefixSaver();
  PrefixSaver(const PrefixSaver&) = delete;
  PrefixSaver& operator=(const PrefixSaver&) = delete;

 private:
  // How far a sequence is stored.
  struct Progress {
    RecordChain chain;
    std::optional<RecordKey> next;  // that there was no room for
    std::int64_t use_time_ns = 0;   // the sequence's: its blocks are used together
    bool is_over = false;           // there is a gap
  };

  void published(SequenceId sequence, std::string_view salt, std::span<const TokenId> tokens);
  // False: no room now.
  bool save(SequenceId sequence, const RecordKey& key, Progress& progress);

  KVCacheManager& kv_;
  PrefixCache& cache_;
  PrefixStore& store_;
  std::function<std::int64_t()> unix_ns_;
  std::unordered_map<SequenceId, Progress> progress_;
};

}  // namespace karez
