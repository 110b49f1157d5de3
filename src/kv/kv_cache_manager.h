// The facade of the KV store: sequences with block tables over one BlockPool.
//
// A sequence is a number of tokens and, for each layer group, a block table. Logical blocks are
// reference counted and shared by forks; a shared block that is about to be written is copied first
// (copy-on-write). Running out of slots is a value: extend() says false and changes nothing.
//
// With a home tier (Residency) a sequence's blocks may lie below the fast tier: slots are then
// taken from blocks that are at home too, and a step names what it reads before it reads it. A cap
// that is full of others' clean blocks has room.
//
// A sequence may be compressed (compress()): it then has fewer blocks than its tokens would fill.
//
// Does not know tokens' content, models, requests or attention. Which content is where is the
// PrefixCache's to know: it marks blocks as cached.
//
//   logical block:  free --extend--> owned (1 reference) <--fork/close--> shared (n references)
//                   owned --close/truncate, once no pin is left--> free; idle if it is cached
//                   idle  --open_cached--> owned;  --extend of any sequence, oldest first--> free
//
// Invariants (check_invariants): each slot is free or owned by one block; reference counts equal
// the number of table entries; a block with references or pins, or a cached one, has all its slots,
// or is at home where it lacks one.
//
// Thread: one owner thread for every non-const call. While a step runs, worker threads may read
// tables and views and write the tokens of the step into blocks that extend() made private.
// Cost: linear in the number of blocks that a call touches; extend() by one token is O(layer
// groups) unless it needs a block.
//
// Metadata, with S slots, G layer groups and B blocks that could exist (S / (layers x heads),
// summed over the groups): 4 S G for the slot table, S / 8 + B / 8 for free lists, 24 B for counts
// and links of idle blocks, and 4 bytes for each block table entry. With 4 KiB slots and one group
// that is 0.1 % of the cap.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kv/block_pin.h"
#include "kv/block_pool.h"
#include "kv/block_table.h"
#include "kv/kv_cache_spec.h"
#include "kv/kv_types.h"
#include "kv/new_blocks.h"
#include "kv/residency.h"

namespace karez {

struct KVCacheStats {
  std::int64_t slots_total = 0;
  std::int64_t slots_used = 0;      // by sequences and pins
  std::int64_t slots_idle = 0;      // cached, nobody uses them: extend() may take them
  std::int64_t cap_bytes = 0;       // slots_total x slot bytes: what was mapped
  std::int64_t used_bytes = 0;      // slots_used x slot bytes
  std::int64_t metadata_bytes = 0;  // tables, counts, free lists: what they take now
  std::int64_t blocks_used = 0;     // logical blocks, all groups
  std::int64_t blocks_shared = 0;   // of these, with two references or more
  std::int64_t copies = 0;          // logical blocks copied on write since create()
};

class KVCacheManager {
 public:
  // A cap that holds less than one block of each group is allowed; extend() then always says false.
  // Fails: as KVCacheSpec::validate() and LogicalBlocks::create().
  // home: where full blocks live below the fast tier; null: nowhere. clock: the tier's.
  static Expected<std::unique_ptr<KVCacheManager>> create(const KVCacheSpec& spec,
                                                          std::int64_t cap_bytes,
                                                          std::unique_ptr<Tier> home = nullptr,
                                                          const Clock& clock = Clock::steady());
  // Requires: all pins are gone.
  ~KVCacheManager();

  // Every call that takes a sequence requires that it is open.

  // An empty sequence. Takes no slots.
  SequenceId open();
  // A new sequence with the first num_tokens of parent; shares all their blocks. Takes no slots.
  // Requires: num_tokens <= num_tokens(parent). None: the parent has released blocks (sliding
  // window) that the next row of a sequence of that length reads.
  [[nodiscard]] std::optional<SequenceId> fork(SequenceId parent, int num_tokens);
  // Gives up all blocks of the sequence; the id is invalid afterwards.
  void close(SequenceId sequence);

  // Makes room for num_tokens more tokens in every layer group and counts them as present; the
  // caller then writes them. All or nothing. A last block that others share is copied.
  // Blocks that no later token reads (sliding windows) are released, also when the answer is false.
  // By 0 tokens it takes nothing.
  // False: too few free and idle slots (not an error: the caller evicts, preempts or waits), or
  // more tokens than an int counts.
  [[nodiscard]] bool extend(SequenceId sequence, int num_tokens);
  // Whether extend() says false because the last block, partly filled, could not be read back from
  // home: the sequence must be computed again.
  bool is_last_block_lost(SequenceId sequence) const;
  // Slots that extend() would take from the pool now, net of what it would release first (negative
  // if it releases more). extend() says true if that many are available.
  std::int64_t slots_needed(SequenceId sequence, int num_tokens) const;
  // Free and idle slots.
  std::int64_t slots_available() const;
  // Slots that sequences can have, all together: those under the cap but for the spare one of a
  // residency.
  std::int64_t slots_for_sequences() const;
  // Forgets all tokens from num_tokens on.
  // Requires: num_tokens <= num_tokens(sequence).
  // False, without effect: as fork() says none.
  [[nodiscard]] bool truncate(SequenceId sequence, int num_tokens);

  // For PrefixCache. A cached block that nobody uses is idle: it keeps its slots and content until
  // extend() needs them, those that became idle first. A sequence that would write into a cached
  // block gets a copy.
  // Requires: some sequence has the block, and it is full and written.
  void cache(BlockId block);
  void uncache(BlockId block);
  bool is_cached(BlockId block) const;
  // Called from inside extend() with each idle block whose slots are taken; it is not cached any
  // more. Must not call the manager. At most one at a time; empty: none.
  void on_evict(std::function<void(BlockId)> callback);
  // Called from inside extend() with each block that is copied on write, so that what others keep
  // beside blocks (a key index) is copied too. Must not call the manager. At most one; empty: none.
  void on_copy(std::function<void(BlockId from, BlockId to)> callback);
  // A new sequence of num_tokens (whole blocks) over cached blocks. Takes no slots from others.
  // tables: [num_layer_groups][num_tokens / 16]; entries that no later row reads (sliding windows)
  // are ignored. Requires: all others are cached.
  SequenceId open_cached(int num_tokens, std::vector<std::vector<BlockId>> tables);

  // Compression: pairs of a window go into new blocks, which take the place of its own in one
  // step. Others that have the old blocks (forks, pins, the prefix cache) keep them.
  //
  // Blocks of a group to be written, in the fast tier until they go home as blocks of a sequence.
  // None: too few available slots.
  std::optional<NewBlocks> new_blocks(int group, std::int64_t count);
  std::int64_t slots_of_blocks(int group, std::int64_t count) const;
  struct TokenRange {
    std::int64_t begin = 0;
    std::int64_t num_tokens = 0;
  };
  // kept: 16 pairs each. pages: of the archived blocks, [archived pages], 0, 1, ... for each block.
  // The table has archived pages of all windows first, in the place of the first window, then what
  // was kept. Not more entries than before, so later tokens do not move back.
  // Requires: a group without a window; whole blocks, which directly follow those of the call
  // before.
  void compress(SequenceId sequence, int group, const TokenRange& window, NewBlocks kept,
                NewBlocks archived, std::span<const std::uint8_t> pages);
  // Tokens without an entry in the tables of layers without a window; a multiple of kBlockSize.
  int num_gone(SequenceId sequence) const;
  // Of the same tables. Valid as a table view is.
  ArchivedEntries archived(SequenceId sequence) const;
  // What compression has made of a sequence, in those tables: counts of blocks of 16 pairs.
  struct CompressedPart {
    int first_entry = 0;
    int num_before = 0;  // blocks that the windows were; 0: none is compressed
    int num_kept = 0;    // entries that are blocks of kept pairs
    int num_archived_pages = 0;
    int num_archived_blocks = 0;  // that these lie in
  };
  CompressedPart compressed_part(SequenceId sequence) const;
  // The layer group without a window, if there is one.
  std::optional<int> compressible_group() const;

  // Null without a home tier.
  Residency* residency();
  const Residency* residency() const;
  // After a step: the sequence's full blocks, whose tokens are written, go home in the background.
  void write_home(SequenceId sequence);
  // KVCacheSpec::most_step_tokens() of the sequence's next step, whose rows read read_tokens of
  // each KV head at most, or all that it holds, in `slots` of which new_blocks() are left out.
  std::int64_t most_step_tokens(SequenceId sequence, std::int64_t read_tokens,
                                std::int64_t slots) const;
  // Another sequence is to run in its place: its last, partly filled block goes home too, so that
  // all its slots can be taken. It stays open.
  void demote(SequenceId sequence);

  // A new sequence whose tokens were computed elsewhere. Its blocks are at home alone, in extents
  // that have their content already: extent_of gives that of entries [first_entry, + kExtentBlocks)
  // of a layer and head, each asked for once; from here on they are the store's to free. Takes no
  // slots. Entries that no later row reads (sliding windows) are left out, as whole extents.
  // Requires: a home tier; num_tokens > 0, a multiple of kExtentTokens.
  // None: too few blocks are free; extent_of was not called.
  [[nodiscard]] std::optional<SequenceId> open_at_home(
      int num_tokens,
      const std::function<ExtentId(int layer, int kv_head, std::int64_t first_entry)>& extent_of);

  int num_tokens(SequenceId sequence) const;
  BlockTableView table(SequenceId sequence, int group) const;
  // Keeps all blocks that the sequence has now from being freed until the pin is gone.
  BlockPin pin(SequenceId sequence);

  const KVCacheSpec& spec() const;
  const std::vector<LayerGroup>& layer_groups() const;
  // The BlockIds of a group are [first_block_id, first_block_id + num_block_ids).
  std::uint32_t first_block_id(int group) const;
  std::size_t num_block_ids(int group) const;
  int group_of_layer(int layer) const;
  KVLayerView layer(int layer) const;
  KVCacheStats stats() const;

  // Empty if all invariants hold, else a description of the first that does not. O(everything).
  std::string check_invariants() const;

 private:
  friend class BlockPin;   // unpin()
  friend class NewBlocks;  // release()
  struct Impl;
  explicit KVCacheManager(std::unique_ptr<Impl> impl);
  void unpin(const std::vector<BlockId>& blocks);
  void release(std::span<const BlockId> new_blocks);

  std::unique_ptr<Impl> impl_;
};

}  // namespace karez
