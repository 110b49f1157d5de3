// The queries of one sequence's latest rows, for scoring its keys once they have aged
// (compress/window_score.h): every kStride-th position, of the query heads that share a KV head one
// in turn, bf16, after RoPE. The mean of several heads' queries looks where none of them does.
//
// Holds positions [next - capacity, next) of those that were recorded; an older one is overwritten
// by the one that takes its place. A position may be recorded again (a draft that was not
// accepted): the last one counts.
// Thread: record() of different (layer, KV head, position) from any threads at once; everything
// else by the owner while nobody records. Owns: its memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace karez {

class QueryRing {
 public:
  // Of the positions, one in so many is kept: scores hardly change (docs/quality.md), and the ring
  // and the time to score are that much smaller.
  static constexpr int kStride = 4;

  // Requires: capacity_tokens is a multiple of kStride. Layers without a place (a sliding window)
  // record nothing: place_of_layer[layer] is -1 for those, else 0, 1, ...
  QueryRing(std::vector<int> place_of_layer, int num_kv_heads, int head_dim, int capacity_tokens);

  static bool keeps(int position) { return position % kStride == 0; }
  // Whose query is kept there, of a group of heads. Requires: keeps(position).
  static int head_of(int position, int group) { return position / kStride % group; }
  // queries: f32 [group][head_dim]. Requires: keeps(position).
  void record(int layer, int kv_head, int position, const float* queries, int group);
  // bf16 [head_dim]. Requires: keeps(position), and it was recorded and not overwritten.
  const std::uint16_t* query(int layer, int kv_head, int position) const;
  int capacity_tokens() const { return capacity_ * kStride; }
  std::size_t bytes() const { return queries_.size() * sizeof(std::uint16_t); }

 private:
  std::size_t at(int layer, int kv_head, int position) const;

  std::vector<int> place_of_layer_;
  int num_kv_heads_;
  int head_dim_;
  int capacity_;                        // kept positions
  std::vector<std::uint16_t> queries_;  // [places][num_kv_heads][capacity][head_dim]
};

}  // namespace karez
