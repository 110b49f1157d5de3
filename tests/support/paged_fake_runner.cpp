#include "support/paged_fake_runner.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "attention/archive_page.h"
#include "attention/query_ring.h"
#include "base/check.h"
#include "kv/block_layout.h"
#include "kv/kv_cache_manager.h"

namespace karez::test {
namespace {

// The finalizer of splitmix64.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// A value is the first coordinates of its token's key: it goes where the pair goes.
constexpr int kParts = sizeof(std::uint64_t) / sizeof(std::uint16_t);
constexpr int kHeadDim = 16;

std::uint16_t* part_of(std::byte* slot, int token, int part) {
  return reinterpret_cast<std::uint16_t*>(slot) +
         BlockLayout::key_index(KvType::kBf16, token, part);
}

// Archived pages have no places for tokens: for each stands its part of the codes, and its scales.
std::uint64_t archived_value(const std::byte* slot, int head_dim, int page, int token) {
  const ArchiveLayout layout = ArchiveLayout::of(head_dim);
  const std::byte* bytes = slot + archive_page_offset(head_dim, page);
  const auto at = static_cast<std::size_t>(token);
  std::uint64_t value = 0;
  for (const std::size_t offset : {layout.keys_offset, layout.values_offset}) {
    std::uint64_t codes = 0;
    std::memcpy(&codes, bytes + offset + at * sizeof(codes), sizeof(codes));
    value = mix(value ^ codes);
  }
  for (const std::size_t offset : {layout.key_scales_offset, layout.value_scales_offset}) {
    std::uint16_t scale = 0;
    std::memcpy(&scale, bytes + offset + at * sizeof(scale), sizeof(scale));
    value = mix(value ^ scale);
  }
  return value;
}

std::uint64_t value_at(const KVLayerView& layer, const SequenceRows& rows, BlockTableView table,
                       bool has_window, int place) {
  const int entry = place / kBlockSize;
  const BlockId block = table[static_cast<std::size_t>(entry)];
  KAREZ_CHECK(!block.is_none(), "a row reads a block that was given up");
  std::byte* slot = layer.slot(0, block);
  if (!has_window && entry >= rows.archived.begin && entry < rows.archived.end) {
    const std::size_t page = static_cast<std::size_t>(entry - rows.archived.begin);
    return archived_value(slot, kHeadDim, rows.archived.pages[page], place % kBlockSize);
  }
  // Coordinates 2i and 2i + 1 of a token are neighbours. Two loads: this is read for every token.
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  std::memcpy(&low, part_of(slot, place % kBlockSize, 0), sizeof(low));
  std::memcpy(&high, part_of(slot, place % kBlockSize, 2), sizeof(high));
  return std::uint64_t{high} << 32 | low;
}

void set_value(const KVLayerView& layer, BlockTableView table, int place, std::uint64_t value) {
  const BlockId block = table[static_cast<std::size_t>(place / kBlockSize)];
  KAREZ_CHECK(!block.is_none(), "a row is written to a block");
  std::byte* slot = layer.slot(0, block);
  const int token = place % kBlockSize;
  for (int part = 0; part < kHeadDim; ++part) {
    // Behind the value: numbers from 1 to 2, so that all of the pair is the token's own.
    const auto filler =
        static_cast<std::uint16_t>(0x3f80 | (mix(value + static_cast<std::uint64_t>(part)) & 0x7f));
    *part_of(slot, token, part) =
        part < kParts ? static_cast<std::uint16_t>(value >> (16 * part)) : filler;
    auto* values = reinterpret_cast<std::uint16_t*>(
        slot + BlockLayout::of(KvType::kBf16, kHeadDim).values_offset);
    values[BlockLayout::value_index(KvType::kBf16, kHeadDim, token, part)] = filler;
  }
}

std::uint64_t run_layer(const KVCacheManager& kv, int layer, const SequenceRows& rows, int position,
                        TokenId token) {
  const int window = kv.spec().layer_windows[static_cast<std::size_t>(layer)];
  const KVLayerView view = kv.layer(layer);
  const BlockTableView table = rows.tables[static_cast<std::size_t>(kv.group_of_layer(layer))];
  std::uint64_t value =
      mix(mix(static_cast<std::uint64_t>(token) * 31 + static_cast<std::uint64_t>(layer)) +
          static_cast<std::uint64_t>(position));
  const int end = rows.place_of(position, window);
  for (int p = window == 0 ? 0 : std::max(0, end - window + 1); p < end; ++p) {
    value =
        mix(value ^ (value_at(view, rows, table, window > 0, p) + static_cast<std::uint64_t>(p)));
  }
  set_value(view, table, end, value);
  return value;
}

// A query of the row's value. It reads of keys what is behind their values, which may be any bits.
void record_query(QueryRing& ring, int layer, int position, std::uint64_t value) {
  float query[kHeadDim] = {};
  for (int part = kParts; part < kHeadDim; ++part) {
    const std::uint64_t bits = mix(~value + static_cast<std::uint64_t>(part)) & 0xff;
    query[part] = static_cast<float>(bits) / 16.0F - 8.0F;
  }
  ring.record(layer, 0, position, query, 1);
}

}  // namespace

PagedFakeRunner::PagedFakeRunner(int vocab_size) {
  config_.architecture = "fake";
  config_.vocab_size = vocab_size;
  config_.attention_scale = 0.25F;
}

KVCacheSpec PagedFakeRunner::kv_spec(std::vector<int> layer_windows) {
  KVCacheSpec spec;
  spec.num_layers = static_cast<int>(layer_windows.size());
  spec.num_kv_heads = 1;
  spec.head_dim = kHeadDim;
  spec.layer_windows = std::move(layer_windows);
  return spec;
}

Expected<std::span<const float>> PagedFakeRunner::forward(const ForwardBatch& batch,
                                                          KVCacheManager& kv) {
  if (before_forward && !before_forward(num_calls_++)) {
    return fail(StatusCode::kInternal, "the fake runner was told to fail");
  }
  states_.assign(batch.tokens.size(), 0);
  for (int layer = 0; layer < kv.spec().num_layers; ++layer) {
    if (selection_listener != nullptr) {
      selection_listener->on_selected(layer, {});
    }
    std::size_t row = 0;
    for (const SequenceRows& rows : batch.sequences) {
      for (int i = 0; i < rows.num_rows; ++i, ++row) {
        const int position = rows.first_position + i;
        const std::uint64_t value = run_layer(kv, layer, rows, position, batch.tokens[row]);
        states_[row] = mix(states_[row] ^ value);
        if (rows.queries != nullptr && i < rows.num_rows - rows.num_hint_rows &&
            QueryRing::keeps(position)) {
          record_query(*rows.queries, layer, position, value);
        }
      }
    }
  }
  logits_.clear();
  std::size_t output = 0;
  int row = 0;
  for (const SequenceRows& rows : batch.sequences) {
    KAREZ_CHECK(rows.first_row == row && rows.num_rows > 0, "rows are consecutive");
    for (int i = 0; i < rows.num_rows; ++i, ++row) {
      if (output < batch.output_rows.size() && batch.output_rows[output] == row) {
        ++output;
        const auto vocab_size = static_cast<std::size_t>(config_.vocab_size);
        logits_.resize(logits_.size() + vocab_size, 0.0F);
        logits_[logits_.size() - vocab_size + states_[static_cast<std::size_t>(row)] % vocab_size] =
            10.0F;
      }
    }
  }
  KAREZ_CHECK(row == static_cast<int>(batch.tokens.size()), "sequences have all rows");
  KAREZ_CHECK(output == batch.output_rows.size(), "output rows are rows, in order");
  return std::span<const float>(logits_);
}

}  // namespace karez::test
