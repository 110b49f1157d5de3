// Finds the KV of tokens that were computed before: full blocks, shared by content.
//
// An entry is one block of 16 tokens after a known prefix. It names a logical block for each layer
// group and has its parent's number, so a path from the root is a prefix. It lives as long as it
// has a block or a child:
//
//   root(identity, salt) -- [t0 .. t15] -- [t16 .. t31] -- ...
//                                      \-- [u16 .. u31]
//
//   in use --last sequence closes--> idle --match()--> in use
//                                    idle --slots are needed, oldest first--> forgotten
//
// Blocks become findable in publish(), which is called when their tokens have been computed, and
// stay in the pool as idle blocks when no sequence uses them: extend() of any sequence takes them
// when nothing is free. A sequence gives its blocks up from its end to its start, so children go
// before their parents, and a block that is used is never taken.
//
// A hit compares token ids, the parent entry and, at the root, the salt: hashes only find. It opens
// a sequence, which holds the blocks from that moment on.
//
// Sliding windows: a sequence gives up a window group's block when it falls out of the window, long
// before its other blocks, so it is the first to be taken and an entry may lose it alone. A prefix
// of L tokens is found only if all blocks that a row at position L reads are there: in each group
// those of (L - window, L). The end of a conversation has them until the cache gets there.
//
// Memory: about 200 bytes for each entry and 16 for each block that could exist, outside the cap.
// Thread: as KVCacheManager. Must not outlive it, and no extend() may follow its end.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/token.h"
#include "kv/kv_cache_manager.h"
#include "kv/prefix_hash.h"

namespace karez {

// How far a sequence's blocks are published: where publish() goes on.
struct PrefixChain {
  int num_blocks = 0;
  PrefixHash hash;          // of the last of them
  std::uint64_t entry = 0;  // its number
};

class PrefixCache {
 public:
  // identity: everything besides the tokens that changes the KV. A cache in memory has one model;
  // the identity keeps the names valid where blocks leave the process.
  // hash_bits: 128, less only to force collisions in tests.
  PrefixCache(KVCacheManager& kv, std::string identity, int hash_bits = 128);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  struct Match {
    SequenceId sequence;  // open, with num_tokens tokens
    int num_tokens = 0;   // > 0, whole blocks, fewer than were asked for
    PrefixChain chain;
  };
  // The longest known beginning of `tokens`, but never all of them: at least one is left to
  // compute, so that there are logits. None: nothing is known.
  [[nodiscard]] std::optional<Match> match(std::string_view salt, std::span<const TokenId> tokens);

  // Makes the full blocks of a sequence findable. `tokens`: those whose KV has been written, from
  // the first one on. Blocks that are known already stay with the sequence alone.
  void publish(SequenceId sequence, std::string_view salt, std::span<const TokenId> tokens,
               PrefixChain& chain);

  // Called inside publish() when blocks have become findable, with all tokens whose blocks are, as
  // far as the sequence goes. Empty: nobody.
  using PublishCallback =
      std::function<void(SequenceId, std::string_view salt, std::span<const TokenId> tokens)>;
  void on_publish(PublishCallback callback) { on_publish_ = std::move(callback); }

  // For tests.
  std::int64_t num_entries() const { return static_cast<std::int64_t>(entries_.size()); }
  // Empty if entries and cached blocks name each other, else what does not hold.
  std::string check_invariants() const;

 private:
  using BlockTokens = std::span<const TokenId, kBlockSize>;
  struct Entry {
    std::uint64_t number = 0;  // never used again, unlike a hash
    PrefixHash parent_hash;
    std::uint64_t parent = 0;  // 0: the root
    std::array<TokenId, kBlockSize> tokens;
    std::string salt;             // of a root's child, else empty
    std::vector<BlockId> blocks;  // [num_layer_groups]; none: not cached (any more)
    int num_children = 0;
  };

  PrefixHash next_hash(const PrefixChain& chain, std::string_view salt, BlockTokens tokens) const;
  // The entry of that name, if it is really this content after this chain.
  Entry* find(const PrefixHash& hash, const PrefixChain& chain, std::string_view salt,
              BlockTokens tokens);
  // Whether the entry that the chain ends with still exists.
  bool is_alive(const PrefixChain& chain) const;
  // False: another content has this name, or the sequence's block is gone.
  bool publish_block(SequenceId sequence, std::string_view salt, BlockTokens tokens,
                     PrefixChain& chain);
  void forget(BlockId block);
  // Drops an entry without blocks and children, then its parent if that has become such a one.
  void drop_if_unused(PrefixHash hash);

  KVCacheManager& kv_;
  std::string identity_;
  int hash_bits_;
  PublishCallback on_publish_;
  std::uint64_t last_number_ = 0;
  std::unordered_map<PrefixHash, Entry> entries_;
  std::unordered_map<std::uint32_t, PrefixHash> entry_of_block_;  // by BlockId::value
};

}  // namespace karez
