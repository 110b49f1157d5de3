#include "attention/coarse_scan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace karez {
namespace {

// Few enough that they stay in the first cache.
constexpr int kRecords = 16;
constexpr int kBlocksAtOnce = kRecords * kBlockSize;
// Coarse records that are fetched ahead of the one that is copied.
constexpr int kFetchAhead = 16;

// Scores and the head's total of some vectors.
struct VectorTotals {
  std::array<double, kScanVectors> sums{};
  std::array<double, kScanVectors> references{};

  // The sums are kept relative to the largest reference so far.
  void add(std::size_t vector, float reference, float sum) {
    double& largest = references[vector];
    const auto next = static_cast<double>(reference);
    if (sums[vector] == 0.0 || next > largest) {
      sums[vector] *= sums[vector] == 0.0 ? 0.0 : std::exp2(largest - next);
      largest = next;
    }
    sums[vector] += static_cast<double>(sum) * std::exp2(next - largest);
  }
  float log2_total(std::size_t vector) const {
    return static_cast<float>(references[vector] + std::log2(sums[vector]));
  }
};

}  // namespace

SelectionShape scanned_shape(const SelectionShape& shape, const SparseOptions& options) {
  if (!options.is_two_level(shape.num_blocks)) {
    return shape;
  }
  const int between = shape.recent_begin - shape.sink_blocks;
  const double at_first = options.two_level_blocks / 4.0;
  const double growth =
      std::sqrt(static_cast<double>(shape.num_blocks) / std::max(1, options.two_level_blocks));
  const int candidates =
      std::min(between, std::max(2 * shape.num_best, static_cast<int>(at_first * growth)));
  SelectionShape scanned = shape;
  scanned.num_blocks -= between - candidates;
  scanned.recent_begin -= between - candidates;
  return scanned;
}

CoarseScan::CoarseScan(int head_dim)
    : head_dim_(head_dim),
      records_(std::size_t{kRecords} * key_index_block_bytes(KeyIndexKind::kR2, head_dim)) {}

void CoarseScan::start(const SelectionShape& shape) {
  shape_ = shape;
  scores_.assign(static_cast<std::size_t>(shape.recent_begin),
                 -std::numeric_limits<float>::infinity());
}

void CoarseScan::gather(const EntryRecords& records, int first, int count) {
  const KeyIndexLayout layout = KeyIndexLayout::of(KeyIndexKind::kR2, head_dim_);
  const std::size_t num_groups = static_cast<std::size_t>(head_dim_) / 16;
  constexpr std::size_t kWord = sizeof(std::uint32_t);
  constexpr std::size_t kScale = sizeof(std::uint16_t);
  for (int i = 0; i < count; ++i) {
    const int ahead = first + i + kFetchAhead;
    if (ahead < records.num_entries() && !records.block_at(ahead).is_none()) {
      __builtin_prefetch(records.coarse_record(ahead));
    }
    const std::byte* from = records.coarse_record(first + i);
    std::byte* record =
        records_.data() + static_cast<std::size_t>(i / kBlockSize) * layout.record_bytes;
    const auto token = static_cast<std::size_t>(i % kBlockSize);
    for (std::size_t g = 0; g < num_groups; ++g) {
      std::memcpy(record + (g * std::size_t{kBlockSize} + token) * kWord, from + g * kWord, kWord);
    }
    std::memcpy(record + layout.scales_offset + token * kScale, from + num_groups * kWord, kScale);
  }
}

void CoarseScan::add_head(const IndexScan& scan, const IndexQuery& query, const KeyIndexView& index,
                          int kv_head, BlockTableView table, std::span<float> scores,
                          const ArchivedEntries& archived) {
  KAREZ_CHECK(index.has_coarse(), "the index of a context this long has coarse records");
  const EntryRecords records(index, kv_head, table, archived);
  const int num_blocks = shape_.recent_begin;
  const auto stride = static_cast<std::size_t>(num_blocks);
  const std::size_t record_bytes = key_index_block_bytes(KeyIndexKind::kR2, head_dim_);
  vector_scores_.resize(
      std::max(vector_scores_.size(), stride * static_cast<std::size_t>(query.num_vectors)));
  std::vector<VectorTotals> totals(
      static_cast<std::size_t>((query.num_vectors + kScanVectors - 1) / kScanVectors));
  IndexChunk chunk{};
  for (int i = 0; i < kRecords; ++i) {
    chunk.records[i] = records_.data() + static_cast<std::size_t>(i) * record_bytes;
  }
  for (int first = 0; first < num_blocks; first += kBlocksAtOnce) {
    const int count = std::min(kBlocksAtOnce, num_blocks - first);
    gather(records, first, count);
    chunk.num_blocks = (count + kBlockSize - 1) / kBlockSize;
    chunk.num_records = chunk.num_blocks;
    chunk.last_tokens = count - (chunk.num_blocks - 1) * kBlockSize;
    // The scan keeps the scores of so many vectors only.
    for (int v = 0; v < query.num_vectors; v += kScanVectors) {
      const int num_vectors = std::min(kScanVectors, query.num_vectors - v);
      const IndexQuery part{query.head_dim,    num_vectors,       query.codes + v * query.head_dim,
                            query.factors + v, query.offsets + v, query.queries};
      std::array<float, std::size_t{kScanVectors} * kRecords> masses;
      std::array<float, kScanVectors> references;
      std::array<float, kScanVectors> sums;
      scan.run(part, chunk, scores.data(),
               {masses.data(), std::size_t{kRecords}, references.data(), sums.data(), 1});
      for (int r = 0; r < num_vectors; ++r) {
        const auto vector = static_cast<std::size_t>(r);
        totals[static_cast<std::size_t>(v / kScanVectors)].add(vector, references[vector],
                                                               sums[vector]);
        const float* from = scores.data() + vector * std::size_t{kScanBlocks} * kBlockSize;
        float* to = vector_scores_.data() + static_cast<std::size_t>(v + r) * stride + first;
        for (int i = 0; i < count; ++i) {
          to[i] = from[i] * query.factors[v + r];
        }
      }
    }
  }
  log2_totals_.clear();
  for (int v = 0; v < query.num_vectors; ++v) {
    const float total = totals[static_cast<std::size_t>(v / kScanVectors)].log2_total(
        static_cast<std::size_t>(v % kScanVectors));
    log2_totals_.push_back(total);
    const float* from = vector_scores_.data() + static_cast<std::size_t>(v) * stride;
    for (std::size_t i = 0; i < stride; ++i) {
      const float share = from[i] - total;
      scores_[i] = share > scores_[i] ? share : scores_[i];
    }
  }
}

std::span<const std::int32_t> CoarseScan::list(const SelectionShape& scanned,
                                               SelectorScratch& scratch) {
  const int candidates = scanned.recent_begin - scanned.sink_blocks;
  list_.resize(static_cast<std::size_t>(scanned.num_blocks));
  const auto fill = [this](int begin, int end, int first) {
    for (int i = begin; i < end; ++i) {
      list_[static_cast<std::size_t>(i)] = first + i - begin;
    }
  };
  fill(0, scanned.sink_blocks, 0);
  const auto chosen = std::span(list_).subspan(static_cast<std::size_t>(scanned.sink_blocks),
                                               static_cast<std::size_t>(candidates));
  top_k(std::span<const float>(scores_).subspan(static_cast<std::size_t>(shape_.sink_blocks)),
        candidates, chosen, scratch);
  for (std::int32_t& block : chosen) {
    block += shape_.sink_blocks;
  }
  fill(scanned.recent_begin, scanned.num_blocks, shape_.recent_begin);
  return list_;
}

}  // namespace karez
