#include "attention/key_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace karez {

std::string_view to_string(KeyIndexKind kind) {
  switch (kind) {
    case KeyIndexKind::kR2:
      return "r2";
    case KeyIndexKind::kR3:
      return "r3";
    case KeyIndexKind::kMinMax:
      return "minmax";
    case KeyIndexKind::kMean:
      break;
  }
  return "mean";
}

Expected<KeyIndexKind> parse_key_index_kind(std::string_view name) {
  for (const KeyIndexKind kind :
       {KeyIndexKind::kR2, KeyIndexKind::kR3, KeyIndexKind::kMinMax, KeyIndexKind::kMean}) {
    if (name == to_string(kind)) {
      return kind;
    }
  }
  return fail(StatusCode::kInvalidArgument,
              fmt::format("the block index is '{}', allowed are r2, r3, minmax, mean", name));
}

std::vector<BlockIdRange> block_id_ranges(const KVCacheManager& kv) {
  std::vector<BlockIdRange> ranges;
  for (int group = 0; group < static_cast<int>(kv.layer_groups().size()); ++group) {
    ranges.push_back({kv.first_block_id(group), kv.num_block_ids(group)});
  }
  return ranges;
}

Expected<KeyIndex> KeyIndex::create(const KVCacheSpec& spec, KeyIndexKind kind,
                                    std::span<const BlockIdRange> ranges,
                                    std::vector<float> centres, int two_level_blocks,
                                    int pages_per_block) {
  const std::size_t centre_floats = static_cast<std::size_t>(spec.num_layers) *
                                    static_cast<std::size_t>(spec.num_kv_heads) *
                                    static_cast<std::size_t>(spec.head_dim);
  if (!centres.empty() && centres.size() != centre_floats) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("key index: the centres are {} numbers, the model has {}",
                            centres.size(), centre_floats));
  }
  const std::vector<LayerGroup> groups = spec.layer_groups();
  KAREZ_CHECK(ranges.size() == groups.size(), "a range of block ids for each layer group");
  std::vector<Layer> layers(static_cast<std::size_t>(spec.num_layers));
  const std::size_t record_bytes = key_index_block_bytes(kind, spec.head_dim);
  std::size_t bytes = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].window > 0) {
      continue;
    }
    const std::size_t num_records = ranges[g].count * static_cast<std::size_t>(spec.num_kv_heads);
    // A table has no more entries than that: those of one block's pages share its id.
    const std::size_t most_entries =
        ranges[g].count * static_cast<std::size_t>(std::max(1, pages_per_block));
    const bool has_coarse =
        codes_tokens(kind) && most_entries > static_cast<std::size_t>(two_level_blocks);
    for (const int layer : groups[g].layers) {
      Layer& place = layers[static_cast<std::size_t>(layer)];
      const auto take = [&bytes](std::size_t count) { return std::exchange(bytes, bytes + count); };
      const std::size_t coarse_bytes =
          has_coarse ? num_records * coarse_record_bytes(spec.head_dim) : 0;
      const auto pages = static_cast<std::size_t>(pages_per_block);
      place.has_index = true;
      place.range = ranges[g];
      place.has_coarse = has_coarse;
      place.first_byte = take(num_records * record_bytes);
      place.first_coarse_byte = take(coarse_bytes);
      place.first_page_byte = take(pages * num_records * record_bytes);
      place.first_coarse_page_byte = take(pages * coarse_bytes);
    }
  }
  // An arena is never empty; a model of windows only has an index of nothing.
  auto arena = Arena::create(bytes > 0 ? bytes : 1);
  if (!arena) {
    return fail(arena.error());
  }
  return KeyIndex(spec, kind, pages_per_block, std::move(layers), std::move(*arena),
                  std::move(centres));
}

KeyIndex::KeyIndex(const KVCacheSpec& spec, KeyIndexKind kind, int pages_per_block,
                   std::vector<Layer> layers, Arena arena, std::vector<float> centres)
    : kind_(kind),
      num_kv_heads_(spec.num_kv_heads),
      head_dim_(spec.head_dim),
      pages_per_block_(pages_per_block),
      layers_(std::move(layers)),
      arena_(std::move(arena)),
      centres_(std::move(centres)) {}

KeyIndexView KeyIndex::view(int layer) const {
  const Layer& place = layers_[static_cast<std::size_t>(layer)];
  if (!place.has_index) {
    return {};
  }
  const float* centres = centres_.empty()
                             ? nullptr
                             : centres_.data() + static_cast<std::size_t>(layer) *
                                                     static_cast<std::size_t>(num_kv_heads_) *
                                                     static_cast<std::size_t>(head_dim_);
  std::byte* base = arena_.bytes().data();
  const std::size_t record = key_index_block_bytes(kind_, head_dim_);
  const std::size_t coarse = coarse_record_bytes(head_dim_);
  using Records = KeyIndexView::Records;
  const bool has_pages = pages_per_block_ > 0;
  return {kind_,
          Records{base + place.first_byte, record, 1},
          place.has_coarse ? Records{base + place.first_coarse_byte, coarse, 1} : Records{},
          has_pages ? Records{base + place.first_page_byte, record, pages_per_block_} : Records{},
          has_pages && place.has_coarse
              ? Records{base + place.first_coarse_page_byte, coarse, pages_per_block_}
              : Records{},
          place.range.first,
          place.range.count,
          centres};
}

void KeyIndex::copy_block(BlockId from, BlockId to) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Layer& place = layers_[i];
    if (!place.has_index || to.value < place.range.first ||
        to.value - place.range.first >= place.range.count) {
      continue;
    }
    const KeyIndexView records = view(static_cast<int>(i));
    for (int head = 0; head < num_kv_heads_; ++head) {
      std::memcpy(records.record(head, to), records.record(head, from),
                  key_index_block_bytes(kind_, head_dim_));
      if (records.has_coarse()) {
        std::memcpy(records.coarse_record(head, to), records.coarse_record(head, from),
                    coarse_record_bytes(head_dim_));
      }
      const auto pages = static_cast<std::size_t>(pages_per_block_);
      if (records.has_pages()) {
        std::memcpy(records.page_record(head, to, 0), records.page_record(head, from, 0),
                    pages * key_index_block_bytes(kind_, head_dim_));
      }
      if (records.has_pages() && records.has_coarse()) {
        std::memcpy(records.coarse_page_record(head, to, 0),
                    records.coarse_page_record(head, from, 0),
                    pages * coarse_record_bytes(head_dim_));
      }
    }
  }
}

}  // namespace karez
