#include "attention/row_ranker.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "attention/attention_scratch.h"
#include "attention/coarse_scan.h"
#include "attention/entry_records.h"
#include "attention/index_query.h"

namespace karez {
namespace {

constexpr float kNotWanted = -std::numeric_limits<float>::infinity();
// Of so many times more candidates than are wanted the records are read.
constexpr int kCandidatesPerWanted = 3;
constexpr int kLeastCandidates = 16;
constexpr float kMostShare = 100.0F;  // log2

// Padded, because threads write to neighbours at once.
struct alignas(kCacheLineBytes) Counter {
  std::atomic<int> value{0};
};

struct Job {
  int row;  // among the sparse rows
  int kv_head;
};

struct Scratch {
  IndexQueries queries;
  CoarseScan coarse;
  SelectorScratch selector;
  std::vector<float> scan_scores;
  std::vector<float> coarse_scores;
  std::vector<std::int32_t> candidates;
  std::vector<float> masses;      // [group][kScanBlocks]
  std::vector<float> references;  // [group]
  std::vector<float> sums;        // [group]
  std::vector<std::pair<float, std::int32_t>> ranked;
  IndexChunk chunk{};
};

}  // namespace

struct RowRanker::Impl {
  SelectorShape shape;
  SparseOptions options;
  std::span<const SequenceRows> sequences;
  std::span<const SparseRow> rows;
  std::size_t table_group = 0;
  std::vector<Job> jobs;
  std::vector<std::int32_t> lists;     // [jobs][kScanBlocks]
  std::vector<RankedBlocks> ranked;    // [jobs]
  std::vector<Counter> next_job;       // [num_layers]
  std::vector<Counter> finished_jobs;  // [num_layers]
  std::vector<Scratch> scratch;        // [max_threads]

  Impl(const SelectorShape& selector_shape, const SparseOptions& sparse_options)
      : shape(selector_shape),
        options(sparse_options),
        next_job(static_cast<std::size_t>(selector_shape.num_layers)),
        finished_jobs(static_cast<std::size_t>(selector_shape.num_layers)) {
    const auto group = static_cast<std::size_t>(shape.group);
    constexpr auto kBlocks = std::size_t{kScanBlocks};
    for (int i = 0; i < shape.max_threads; ++i) {
      scratch.push_back({IndexQueries(shape.group, shape.head_dim),
                         CoarseScan(shape.head_dim),
                         {},
                         std::vector<float>(std::size_t{kScanVectors} * kBlocks * kBlockSize),
                         {},
                         std::vector<std::int32_t>(kBlocks),
                         std::vector<float>(group * kBlocks),
                         std::vector<float>(group),
                         std::vector<float>(group),
                         {}});
      scratch.back().selector.kernels = &select_kernels(shape.cpu_level);
    }
  }

  BlockTableView table_of(const SparseRow& row) const {
    return sequences[static_cast<std::size_t>(row.sequence)].tables[table_group];
  }
  const ArchivedEntries& archived_of(const SparseRow& row) const {
    return sequences[static_cast<std::size_t>(row.sequence)].archived;
  }
  const float* queries_of(const SparseRow& row, int kv_head, RowsView queries) const {
    const SequenceRows& of = sequences[static_cast<std::size_t>(row.sequence)];
    return queries.data + static_cast<std::size_t>(of.first_row + row.row) * queries.row_stride +
           static_cast<std::size_t>(kv_head * shape.group * shape.head_dim);
  }
  std::span<std::int32_t> list_of(std::size_t job) {
    return std::span(lists).subspan(job * std::size_t{kScanBlocks}, kScanBlocks);
  }

  // Fills s.candidates with blocks that have no slot, the best of the coarse records; how many.
  int find_candidates(const SparseRow& row, const Job& job, const KVLayerView& blocks,
                      const KeyIndexView& index, const float* queries, int wanted, Scratch& s);
  void rank(const Job& job, std::size_t job_index, const KVLayerView& blocks,
            const KeyIndexView& index, RowsView queries, int wanted, Scratch& s);
};

int RowRanker::Impl::find_candidates(const SparseRow& row, const Job& job,
                                     const KVLayerView& blocks, const KeyIndexView& index,
                                     const float* queries, int wanted, Scratch& s) {
  const BlockTableView table = table_of(row);
  s.coarse.start(row.shape);
  {
    const IndexScan scan(shape.cpu_level, KeyIndexKind::kR2);
    s.queries.prepare(KeyIndexKind::kR2, queries, shape.score_scale);
    s.coarse.add_head(scan, s.queries.view(), index, job.kv_head, table, s.scan_scores,
                      archived_of(row));
  }
  const SlotId* slots = blocks.slots_of_head(job.kv_head);
  const std::span<const float> all = s.coarse.block_scores();
  s.coarse_scores.assign(all.begin() + row.shape.sink_blocks, all.end());
  int missing = 0;
  for (std::size_t i = 0; i < s.coarse_scores.size(); ++i) {
    const BlockId block = table[i + static_cast<std::size_t>(row.shape.sink_blocks)];
    if (slots[block.value].is_none()) {
      ++missing;
    } else {
      s.coarse_scores[i] = kNotWanted;
    }
  }
  const int count =
      std::min({missing, kScanBlocks, std::max(wanted * kCandidatesPerWanted, kLeastCandidates)});
  const auto chosen = std::span(s.candidates).first(static_cast<std::size_t>(count));
  top_k(s.coarse_scores, count, chosen, s.selector);
  for (std::int32_t& block : chosen) {
    block += row.shape.sink_blocks;
  }
  return count;
}

void RowRanker::Impl::rank(const Job& job, std::size_t job_index, const KVLayerView& blocks,
                           const KeyIndexView& index, RowsView all_queries, int wanted,
                           Scratch& s) {
  const SparseRow& row = rows[static_cast<std::size_t>(job.row)];
  RankedBlocks& out = ranked[job_index];
  out = {row.sequence, row.position, job.kv_head, {}};
  const float* queries = queries_of(row, job.kv_head, all_queries);
  const int count = wanted == 0 ? 0 : find_candidates(row, job, blocks, index, queries, wanted, s);
  if (count == 0) {
    return;
  }
  const EntryRecords records(index, job.kv_head, table_of(row), archived_of(row));
  s.chunk.num_blocks = count;
  s.chunk.num_records = count;
  s.chunk.last_tokens = kBlockSize;  // candidates are complete
  for (int i = 0; i < count; ++i) {
    s.chunk.records[i] = records.record(s.candidates[static_cast<std::size_t>(i)]);
  }
  const IndexScan scan(shape.cpu_level, index.kind());
  s.queries.prepare(index.kind(), queries, shape.score_scale);
  scan.run(s.queries.view(), s.chunk, s.scan_scores.data(),
           {s.masses.data(), std::size_t{kScanBlocks}, s.references.data(), s.sums.data(), 1});
  s.ranked.clear();
  for (int i = 0; i < count; ++i) {
    float share = 0;
    for (int v = 0; v < shape.group; ++v) {
      const auto vector = static_cast<std::size_t>(v);
      const float mass = s.masses[vector * std::size_t{kScanBlocks} + static_cast<std::size_t>(i)];
      // A total of means may be far below one of its tokens; infinity times no mass is no number.
      const float exponent = std::min(s.references[vector] - s.coarse.log2_total(v), kMostShare);
      share += mass * std::exp2(exponent);
    }
    s.ranked.emplace_back(share, s.candidates[static_cast<std::size_t>(i)]);
  }
  std::ranges::sort(s.ranked, [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  const auto kept = static_cast<std::size_t>(std::min(count, wanted));
  const std::span<std::int32_t> list = list_of(job_index).first(kept);
  for (std::size_t i = 0; i < kept; ++i) {
    list[i] = s.ranked[i].second;
  }
  out.blocks = list;
}

RowRanker::RowRanker(const SelectorShape& shape, const SparseOptions& options)
    : impl_(std::make_unique<Impl>(shape, options)) {}
RowRanker::~RowRanker() = default;

void RowRanker::plan(std::span<const SequenceRows> sequences, std::size_t table_group,
                     std::span<const SparseRow> rows) {
  Impl& self = *impl_;
  self.sequences = sequences;
  self.table_group = table_group;
  self.rows = rows;
  self.jobs.clear();
  for (int row = 0; row < static_cast<int>(rows.size()); ++row) {
    for (int head = 0; head < self.shape.num_kv_heads; ++head) {
      if (!rows[static_cast<std::size_t>(row)].is_hint) {
        self.jobs.push_back({row, head});
      }
    }
  }
  self.lists.resize(std::max(self.lists.size(), self.jobs.size() * std::size_t{kScanBlocks}));
  self.ranked.assign(self.jobs.size(), {});
  for (std::size_t layer = 0; layer < self.next_job.size(); ++layer) {
    self.next_job[layer].value.store(0, std::memory_order_relaxed);
    self.finished_jobs[layer].value.store(0, std::memory_order_relaxed);
  }
}

bool RowRanker::run(int layer, const KVLayerView& blocks, const KeyIndexView& index,
                    RowsView queries, std::span<const int> wanted, int thread) {
  Impl& self = *impl_;
  Scratch& s = self.scratch[static_cast<std::size_t>(thread)];
  auto& next = self.next_job[static_cast<std::size_t>(layer)].value;
  auto& finished = self.finished_jobs[static_cast<std::size_t>(layer)].value;
  bool is_last = false;
  while (true) {
    const auto claimed = static_cast<std::size_t>(next.fetch_add(1, std::memory_order_relaxed));
    if (claimed >= self.jobs.size()) {
      return is_last;
    }
    const Job& job = self.jobs[claimed];
    self.rank(job, claimed, blocks, index, queries, wanted[static_cast<std::size_t>(job.kv_head)],
              s);
    is_last =
        finished.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<int>(self.jobs.size());
  }
}

std::span<const RankedBlocks> RowRanker::ranked() const { return impl_->ranked; }

}  // namespace karez
