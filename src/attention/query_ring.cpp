#include "attention/query_ring.h"

#include <algorithm>
#include <utility>

#include "base/bf16.h"
#include "base/check.h"

namespace karez {
namespace {

std::size_t size_of(int value) { return static_cast<std::size_t>(value); }

}  // namespace

QueryRing::QueryRing(std::vector<int> place_of_layer, int num_kv_heads, int head_dim,
                     int capacity_tokens)
    : place_of_layer_(std::move(place_of_layer)),
      num_kv_heads_(num_kv_heads),
      head_dim_(head_dim),
      capacity_(capacity_tokens / kStride) {
  KAREZ_CHECK(capacity_tokens > 0 && capacity_tokens % kStride == 0, "whole strides");
  const int places = place_of_layer_.empty() ? 0 : *std::ranges::max_element(place_of_layer_) + 1;
  queries_.resize(size_of(places) * size_of(num_kv_heads) * size_of(capacity_) * size_of(head_dim));
}

std::size_t QueryRing::at(int layer, int kv_head, int position) const {
  KAREZ_DCHECK(keeps(position), "a position that is kept");
  const std::size_t row =
      size_of(place_of_layer_[size_of(layer)]) * size_of(num_kv_heads_) + size_of(kv_head);
  return (row * size_of(capacity_) + size_of(position / kStride % capacity_)) * size_of(head_dim_);
}

void QueryRing::record(int layer, int kv_head, int position, const float* queries, int group) {
  if (place_of_layer_[size_of(layer)] < 0) {
    return;
  }
  std::uint16_t* out = queries_.data() + at(layer, kv_head, position);
  const float* query = queries + static_cast<std::ptrdiff_t>(head_of(position, group)) * head_dim_;
  for (int i = 0; i < head_dim_; ++i) {
    out[i] = to_bf16(query[i]);
  }
}

const std::uint16_t* QueryRing::query(int layer, int kv_head, int position) const {
  return queries_.data() + at(layer, kv_head, position);
}

}  // namespace karez
