// The naive model of KVCacheManager: what it should do, written for clarity alone.
//
// A block is an object with 16 token values in it, tables are lists of pointers to it, and every
// count is found by looking at everything. Tests drive it beside the real store and compare.
//
// Thread: one.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "kv/kv_cache_spec.h"

namespace karez {

// One logical block. Each token value is written once, so that equal values are the same token.
struct ReferenceBlock {
  std::array<std::uint32_t, kBlockSize> values{};  // 0: never written
};
using ReferenceBlockPtr = std::shared_ptr<ReferenceBlock>;

class ReferenceKVCache {
 public:
  ReferenceKVCache(const KVCacheSpec& spec, std::int64_t num_slots);

  void open(int name);
  bool fork(int parent, int child, int num_tokens);
  bool truncate(int name, int num_tokens);
  void close(int name);
  // The new tokens get the values first_value, first_value + 1, ...
  bool extend(int name, int num_tokens, std::uint32_t first_value);
  void pin(int name, int pin_name);
  void unpin(int pin_name);

  int num_tokens(int name) const { return sequences_.at(name).num_tokens; }
  // Null where a window has let go of a block.
  const std::vector<ReferenceBlockPtr>& table(int name, int group) const;
  // [group][block]
  const std::vector<std::vector<ReferenceBlockPtr>>& pinned(int pin_name) const {
    return pins_.at(pin_name);
  }

  std::int64_t slots_used() const;
  std::int64_t blocks_used() const;
  std::int64_t blocks_shared() const;
  std::int64_t copies() const { return copies_; }

 private:
  struct Sequence {
    int num_tokens = 0;
    std::vector<std::vector<ReferenceBlockPtr>> tables;  // [group]
  };

  // Number of table entries that name the block.
  int references(const ReferenceBlockPtr& block) const;
  // [group]: the blocks that any table or pin names.
  std::vector<std::set<ReferenceBlockPtr>> live_blocks() const;
  // Every token that the row at position num_tokens reads, and the block it is written to, is
  // there.
  bool has_all_that_is_read(const Sequence& sequence, int num_tokens) const;
  void release_unread(Sequence& sequence);
  static void cut(Sequence& sequence, int num_tokens);

  std::vector<LayerGroup> groups_;
  std::int64_t num_kv_heads_;
  std::int64_t num_slots_;
  std::int64_t copies_ = 0;
  std::map<int, Sequence> sequences_;
  std::map<int, std::vector<std::vector<ReferenceBlockPtr>>> pins_;
};

}  // namespace karez
