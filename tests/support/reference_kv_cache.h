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
  // The window's blocks go, kept and archived ones come: those first, for each of their pages, and
  // behind those of earlier windows. Requires: the window follows the one before.
  struct Window {
    int begin = 0;  // tokens
    int end = 0;
  };
  void compress(int name, int group, Window window, const std::vector<ReferenceBlockPtr>& kept,
                const std::vector<ReferenceBlockPtr>& pages);
  void pin(int name, int pin_name);
  void unpin(int pin_name);

  int num_tokens(int name) const { return sequences_.at(name).num_tokens; }
  // Tokens up to here have been compressed.
  int compressed_end(int name, int group) const { return of(name, group).compressed_end; }
  // Tokens that have no entry.
  int num_gone(int name, int group) const { return of(name, group).num_gone; }
  int archived_begin(int name, int group) const { return of(name, group).archived_begin; }
  int num_archived(int name, int group) const { return of(name, group).num_archived; }
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
  struct Compressed {
    int compressed_end = 0;
    int num_gone = 0;
    int archived_begin = 0;  // entries
    int num_archived = 0;
    int num_entries = 0;  // that stand for what was compressed, and for what is before it
  };
  struct Sequence {
    int num_tokens = 0;
    std::vector<std::vector<ReferenceBlockPtr>> tables;  // [group]
    std::vector<Compressed> compressed;                  // [group]
  };

  const Compressed& of(int name, int group) const {
    return sequences_.at(name).compressed[static_cast<std::size_t>(group)];
  }

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
