// The geometry of a model's KV cache: what one token, one block and one slot cost.
//
// Layers with the same attention window form a *layer group*: they hold the same tokens, so a
// sequence has one block table for each group. A model without sliding windows has one group.
//
//   slot bytes = 16 tokens x head_dim x 2 (keys, values) x bytes of the type
//                (q8_0: + 2 x 16 f32 scales), rounded up to 64
//
// Thread: a value; immutable in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "kv/kv_types.h"

namespace karez {

// Each group has an index of its own from blocks to slots, so their number is bounded.
inline constexpr int kMaxLayerGroups = 8;

// Layers that keep the same tokens.
struct LayerGroup {
  int window = 0;           // tokens that a row reads, itself included; 0: all
  std::vector<int> layers;  // ascending
};

struct KVCacheSpec {
  int num_layers = 0;
  int num_kv_heads = 0;
  int head_dim = 0;  // a multiple of 16, at most 512; keys and values alike
  KvType type = KvType::kBf16;
  std::vector<int> layer_windows;  // [num_layers], 0: full attention. Empty: all layers full.

  // Fails: kInvalidArgument naming the field, its value and the allowed range.
  // Everything below requires a valid spec.
  Expected<void> validate() const;

  // Groups in ascending order of their first layer.
  std::vector<LayerGroup> layer_groups() const;

  // Bytes of keys and values of 16 tokens of one head of one layer, a multiple of 64.
  std::size_t slot_bytes() const;
  // Bytes that a token of a long sequence adds: full-attention layers only.
  std::size_t bytes_per_token() const;
  // The most slots that a sequence occupies while it is extended from empty to num_tokens in steps
  // of step_tokens > 0 (the last one may be shorter): whole blocks, windows applied as
  // KVCacheManager::extend() applies them. Exact; saturates at the largest int64.
  std::int64_t slots_for_sequence(std::int64_t num_tokens, std::int64_t step_tokens) const;
  // With a home tier: the most tokens of a step behind num_tokens, so that `slots` hold the blocks
  // that it writes in all layers and those that one layer reads besides. read_tokens: that its rows
  // read in layers without a window; in the others they read the window. 0: not even one.
  std::int64_t most_step_tokens(std::int64_t num_tokens, std::int64_t read_tokens,
                                std::int64_t slots) const;
};

}  // namespace karez
