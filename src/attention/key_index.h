// The key index: a few bits about every key, from which a row estimates where its attention goes.
//
//   r2, r3   every token: its key after RoPE, minus a constant centre, rotated (key_rotation.h),
//            each coordinate in 2 or 3 bits with one step, and a least-squares scale
//   minmax   every complete block: least and largest value of each coordinate (Quest, arXiv
//            2406.10774; OasisKV)
//   mean     every complete block: the mean of each coordinate
//
// A record is the index of one block of one (layer, KV head), d = head_dim, groups of 16
// coordinates:
//
//   r2       codes u32 [d/16][16 tokens], bits 2s + 8j: coordinate 4s + j; scales bf16 [16]
//   r3       the low bits as r2; high bits u32 [ceil(d/32)][16 tokens], bit 4g + s + 8j: group g of
//            the pair, coordinate 4s + j; scales bf16 [16]
//   minmax   bf16 [d] least, bf16 [d] largest
//   mean     bf16 [d]
//
// An index of codes that is large enough for a sequence of more than kTwoLevelBlocks blocks also
// has a *coarse* record for each complete block, from which blocks are chosen whose records are
// worth reading (coarse_scan.h): the mean of its keys, coded like one token of r2,
//
//   coarse   codes u32 [d/16], scale bf16
//
// One 64-byte line of codes is 16 tokens x 16 coordinates: after a shift and a mask each 32-bit
// lane holds four codes of one token, which an 8-bit dot product multiplies with four of the query.
//
// A block of archived pages (archive_page.h) has the same records for each page, in a part of the
// index of its own, which is there on request.
//
// KeyIndexView is to the index what KVLayerView is to the slots. Records are addressed by BlockId,
// so sequences that share a block share its record; whoever copies a block must copy its record
// (KeyIndex::copy_block). Layers with a sliding window have no index.
// Thread: KeyIndex::create() and copy_block() by the owner of the block tables; records are written
// by PagedAttention::store(), each token by one thread, and read by all between stores.
// Owns: KeyIndex owns the arena.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "attention/block_store.h"
#include "base/arena.h"
#include "base/status.h"
#include "kv/kv_cache_manager.h"
#include "kv/kv_cache_spec.h"
#include "kv/kv_types.h"

namespace karez {

enum class KeyIndexKind { kR2, kR3, kMinMax, kMean };

std::string_view to_string(KeyIndexKind kind);
// Fails: kInvalidArgument with the list of kinds.
Expected<KeyIndexKind> parse_key_index_kind(std::string_view name);

// True for kinds whose tokens are coded one by one, also in a block that is not complete.
constexpr bool codes_tokens(KeyIndexKind kind) {
  return kind == KeyIndexKind::kR2 || kind == KeyIndexKind::kR3;
}
// Subtracted from a code, gives its level in units of the step.
constexpr float code_offset(KeyIndexKind kind) { return kind == KeyIndexKind::kR3 ? 3.5F : 1.5F; }

// Contexts of more blocks are scanned in two levels.
inline constexpr int kTwoLevelBlocks = 65536 / kBlockSize;

constexpr std::size_t coarse_record_bytes(int head_dim) {
  return static_cast<std::size_t>(head_dim) / 16 * sizeof(std::uint32_t) + sizeof(std::uint16_t);
}

// Where the parts of a record lie.
struct KeyIndexLayout {
  std::size_t high_bits_offset;  // r3 only
  std::size_t scales_offset;     // r2, r3
  std::size_t record_bytes;

  static constexpr KeyIndexLayout of(KeyIndexKind kind, int head_dim) {
    const auto dim = static_cast<std::size_t>(head_dim);
    constexpr std::size_t kLineBytes = kBlockSize * sizeof(std::uint32_t);
    const std::size_t low = dim / 16 * kLineBytes;
    const std::size_t high = (dim + 31) / 32 * kLineBytes;
    constexpr std::size_t kScales = kBlockSize * sizeof(std::uint16_t);
    switch (kind) {
      case KeyIndexKind::kR2:
        return {low, low, low + kScales};
      case KeyIndexKind::kR3:
        return {low, low + high, low + high + kScales};
      case KeyIndexKind::kMinMax:
        return {0, 0, 2 * dim * sizeof(std::uint16_t)};
      case KeyIndexKind::kMean:
        break;
    }
    return {0, 0, dim * sizeof(std::uint16_t)};
  }
};

// Bytes of the index of one block of one (layer, KV head).
constexpr std::size_t key_index_block_bytes(KeyIndexKind kind, int head_dim) {
  return KeyIndexLayout::of(kind, head_dim).record_bytes;
}

// The records of one layer. A default-made view is that of a layer without an index.
class KeyIndexView {
 public:
  KeyIndexView() = default;
  // Where the records of one kind are. Null: there are none.
  struct Records {
    std::byte* base = nullptr;  // [num_kv_heads][num_blocks][pages][bytes]
    std::size_t bytes = 0;      // of one record
    int pages = 1;              // in a block
  };
  KeyIndexView(KeyIndexKind kind, Records blocks, Records coarse, Records pages,
               Records coarse_pages, std::uint32_t first_id, std::size_t num_blocks,
               const float* centres)
      : kind_(kind),
        blocks_(blocks),
        coarse_(coarse),
        pages_(pages),
        coarse_pages_(coarse_pages),
        first_id_(first_id),
        num_blocks_(num_blocks),
        centres_(centres) {}

  bool is_none() const { return blocks_.base == nullptr; }
  KeyIndexKind kind() const { return kind_; }
  std::byte* record(int kv_head, BlockId block) const { return at(blocks_, kv_head, block, 0); }
  bool has_coarse() const { return coarse_.base != nullptr; }
  std::byte* coarse_record(int kv_head, BlockId block) const {
    return at(coarse_, kv_head, block, 0);
  }
  // Of archived pages: coarse ones are there if has_coarse().
  bool has_pages() const { return pages_.base != nullptr; }
  std::byte* page_record(int kv_head, BlockId block, int page) const {
    return at(pages_, kv_head, block, page);
  }
  std::byte* coarse_page_record(int kv_head, BlockId block, int page) const {
    return at(coarse_pages_, kv_head, block, page);
  }
  // f32 [num_kv_heads][head_dim]; null: all zero.
  const float* centres() const { return centres_; }
  const float* centre(int kv_head, int head_dim) const {
    return centres_ == nullptr ? nullptr : centres_ + kv_head * head_dim;
  }

 private:
  std::byte* at(const Records& records, int kv_head, BlockId block, int page) const {
    const std::size_t place =
        static_cast<std::size_t>(kv_head) * num_blocks_ + (block.value - first_id_);
    return records.base + records.bytes * (place * static_cast<std::size_t>(records.pages) +
                                           static_cast<std::size_t>(page));
  }

  KeyIndexKind kind_ = KeyIndexKind::kR2;
  Records blocks_;
  Records coarse_;
  Records pages_;
  Records coarse_pages_;
  std::uint32_t first_id_ = 0;
  std::size_t num_blocks_ = 0;
  const float* centres_ = nullptr;
};

// The BlockIds that a layer group may use: [first, first + count).
struct BlockIdRange {
  std::uint32_t first = 0;
  std::size_t count = 0;
};
// Those of a store, for each layer group.
std::vector<BlockIdRange> block_id_ranges(const KVCacheManager& kv);

class KeyIndex {
 public:
  // ranges: [num_layer_groups]. centres: f32 [num_layers][num_kv_heads][head_dim], or empty for
  // zeros. Records become resident when first written. two_level_blocks: coarse records are there
  // for layers whose tables can have more entries than that. pages_per_block: records of so many
  // archived pages in each block; 0: of none.
  // Fails: kInvalidArgument if centres has another size; as Arena::create().
  static Expected<KeyIndex> create(const KVCacheSpec& spec, KeyIndexKind kind,
                                   std::span<const BlockIdRange> ranges,
                                   std::vector<float> centres = {},
                                   int two_level_blocks = kTwoLevelBlocks, int pages_per_block = 0);

  KeyIndexKind kind() const { return kind_; }
  // None for a layer with a sliding window.
  KeyIndexView view(int layer) const;
  // Bytes reserved; records of blocks that were never used are not resident.
  std::size_t bytes() const { return arena_.bytes().size(); }
  // Records of all layers and heads of the blocks' group, of pages too. Requires: both are of one
  // group.
  void copy_block(BlockId from, BlockId to);

 private:
  struct Layer {
    bool has_index = false;
    BlockIdRange range;
    std::size_t first_byte = 0;
    bool has_coarse = false;
    std::size_t first_coarse_byte = 0;
    std::size_t first_page_byte = 0;
    std::size_t first_coarse_page_byte = 0;
  };
  KeyIndex(const KVCacheSpec& spec, KeyIndexKind kind, int pages_per_block,
           std::vector<Layer> layers, Arena arena, std::vector<float> centres);

  KeyIndexKind kind_;
  int num_kv_heads_;
  int head_dim_;
  int pages_per_block_;
  std::vector<Layer> layers_;
  Arena arena_;
  std::vector<float> centres_;
};

// Codes tokens [first_token, first_token + keys) of a record from their f32 keys.
// centre: [head_dim] or null. A key that is not finite gets scale 0: it scores as a key at the
// centre. Requires: codes_tokens(kind).
void index_tokens(KeyIndexKind kind, int head_dim, std::byte* record, int first_token,
                  int num_tokens, TokenRows keys, const float* centre);

// The same from the keys of a slot: what a record holds is a function of its block's bytes, whether
// they were computed here or came from elsewhere.
void index_stored_tokens(KeyIndexKind kind, int head_dim, std::byte* record, int first_token,
                         int num_tokens, KvType type, const std::byte* slot, const float* centre);

// The coarse record of a complete block from its keys as they are stored. centre: [head_dim] or
// null.
void index_mean(int head_dim, std::byte* coarse_record, KvType type, const std::byte* slot,
                const float* centre);

// Summarises the keys of a complete block as they are stored. Requires: !codes_tokens(kind).
void index_block(KeyIndexKind kind, int head_dim, std::byte* record, KvType type,
                 const std::byte* slot);

// All records of a complete block of any kind. keys: f32 [16][head_dim]; coarse_record: null:
// there is none; centre: [head_dim] or null.
void index_whole_block(KeyIndexKind kind, int head_dim, std::byte* record, std::byte* coarse_record,
                       const float* keys, const float* centre);
// The same from its keys as they are stored.
void index_stored_block(const KeyIndexView& index, int kv_head, BlockId block, int head_dim,
                        KvType type, const std::byte* slot);

}  // namespace karez
