// Archived pages: 16 pairs of one KV head in 4 bits a coordinate, for context that was compressed
// and for blocks on their way to another node.
//
// Keys and values are rotated (key_rotation.h), then each coordinate gets one of 16 levels,
// (code - 7.5) x scale, with one scale for a token's key and one for its value, bf16. A quarter of
// the bytes of bf16; the squared error is about 1.2 %. A rotated query scores the
// codes as they are, and what is attended to is rotated back once (paged_attention.cpp).
//
//   key codes     16 x head_dim nibbles, in the order of bf16 keys in a slot (kv/block_layout.h)
//   value codes   likewise, of bf16 values
//   key scales    bf16 [16]
//   value scales  bf16 [16]
//
// Nibbles: 128 elements are 32 little-endian 16-bit words; word j holds elements j, 32 + j, 64 + j
// and 96 + j from its low bits on, so that shifts and one table make vectors of them.
//
// Several pages lie in one slot, one behind the other. The same plain C++ for all processors, so
// that stored bits never depend on the CPU level.
// Thread: calls on different pages are independent. Owns: nothing.
#pragma once

#include <cstddef>

#include "attention/block_store.h"
#include "attention/key_index.h"
#include "kv/block_layout.h"
#include "kv/kv_types.h"

namespace karez {

struct ArchiveLayout {
  std::size_t keys_offset;
  std::size_t values_offset;
  std::size_t key_scales_offset;
  std::size_t value_scales_offset;
  std::size_t page_bytes;  // a multiple of 64

  static constexpr ArchiveLayout of(int head_dim) {
    const std::size_t codes = static_cast<std::size_t>(kBlockSize * head_dim) / 2;
    constexpr std::size_t kScales = std::size_t{kBlockSize} * 2;
    return {0, codes, 2 * codes, 2 * codes + kScales, 2 * codes + 2 * kScales};
  }
};
static_assert(ArchiveLayout::of(16).page_bytes % 64 == 0);

constexpr int pages_per_block(KvType type, int head_dim) {
  return static_cast<int>(BlockLayout::of(type, head_dim).slot_bytes /
                          ArchiveLayout::of(head_dim).page_bytes);
}
// page: in [0, pages_per_block).
constexpr std::size_t archive_page_offset(int head_dim, int page) {
  return static_cast<std::size_t>(page) * ArchiveLayout::of(head_dim).page_bytes;
}

// keys, values: 16 rows. A key or value that is not finite becomes zero.
void write_archive_page(int head_dim, std::byte* page, TokenRows keys, TokenRows values);

// f32 [16][head_dim] each, rotated back; null: not wanted.
void decode_archive_page(int head_dim, const std::byte* page, float* keys, float* values);

// A block of the store as a page, and the block that a page stands for, in the store's type: what a
// node that gets the page has. Tokens that were not written are whatever was there, as in the
// block.
void archive_block(KvType type, int head_dim, const std::byte* slot, std::byte* page);
void restore_block(KvType type, int head_dim, const std::byte* page, std::byte* slot);

// The records of a page of a block in the index, from its decoded keys.
// Requires: index.has_pages().
void index_archive_page(const KeyIndexView& index, int kv_head, BlockId block, int page,
                        int head_dim, const std::byte* page_bytes);

}  // namespace karez
