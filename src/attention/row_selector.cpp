#include "attention/row_selector.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "attention/attention_scratch.h"
#include "attention/coarse_scan.h"
#include "attention/entry_records.h"
#include "attention/index_query.h"
#include "base/check.h"

namespace karez {
namespace {

// With at least this many selections for each thread none is split.
constexpr int kJobsPerThread = 4;

// One list of blocks to be made.
struct SelectJob {
  int row;  // among the sparse rows
  int kv_head;
  int num_kv_heads;
  SelectionShape scanned;  // of the blocks whose records are read
  int num_chunks;          // of these
  std::size_t first_mass;  // masses f32 [num_vectors][mass_stride]
  std::size_t mass_stride;
  std::size_t first_reference;  // references and sums, f32 [num_vectors][num_chunks] each
};

struct ScanItem {
  int job;
  int kv_head;
  int chunk;  // or one of these
};
constexpr int kAllChunks = -1;  // of the KV head
constexpr int kWholeJob = -2;   // of all its KV heads, in two levels

// Padded, because threads write to neighbours at once.
struct alignas(kCacheLineBytes) Counter {
  std::atomic<int> value{0};
};

struct Scratch {
  IndexQueries queries;
  std::vector<float> scores;
  std::vector<HeadMasses> heads;
  SelectorScratch selector;
  IndexChunk chunk{};
  CoarseScan coarse;
};

}  // namespace

struct RowSelector::Impl {
  SelectorShape shape;
  SparseOptions options;

  std::span<const SequenceRows> sequences;
  std::size_t table_group = 0;
  SparseRows sparse;
  std::vector<SelectJob> jobs;
  std::vector<ScanItem> items;
  std::vector<float> masses;
  std::vector<float> references;
  std::vector<float> sums;
  std::vector<std::int32_t> lists;
  std::vector<float> list_masses;        // parallel to them, if asked for
  std::vector<std::int32_t> runners_up;  // [rows][num_kv_heads][options.runners_up]
  std::vector<SelectedBlocks> selected;  // [rows][num_kv_heads]
  std::vector<Counter> finished_items;   // [num_jobs] at least
  std::vector<Counter> next_item;        // [num_layers]
  std::vector<Counter> finished_jobs;    // [num_layers]
  std::vector<Scratch> scratch;          // [max_threads]

  Impl(const SelectorShape& selector_shape, const SparseOptions& sparse_options)
      : shape(selector_shape),
        options(sparse_options),
        next_item(static_cast<std::size_t>(selector_shape.num_layers)),
        finished_jobs(static_cast<std::size_t>(selector_shape.num_layers)) {
    for (int i = 0; i < shape.max_threads; ++i) {
      scratch.push_back(
          {IndexQueries(shape.group, shape.head_dim),
           std::vector<float>(std::size_t{kScanVectors} * std::size_t{kScanBlocks} * kBlockSize),
           {},
           {},
           {},
           CoarseScan(shape.head_dim)});
      scratch.back().selector.kernels = &select_kernels(shape.cpu_level);
    }
  }

  const SparseRow& row_of(const SelectJob& job) const {
    return sparse.rows[static_cast<std::size_t>(job.row)];
  }
  const SequenceRows& sequence_of(const SparseRow& row) const {
    return sequences[static_cast<std::size_t>(row.sequence)];
  }
  std::size_t num_vectors(const SelectJob& job) const {
    return static_cast<std::size_t>(job.num_kv_heads * shape.group);
  }

  void add_jobs(int row_index, bool split, std::size_t& num_masses, std::size_t& num_references) {
    const SparseRow& row = sparse.rows[static_cast<std::size_t>(row_index)];
    const int heads_of_job = options.select_per == SelectPer::kHead ? 1 : shape.num_kv_heads;
    for (int head = 0; head < shape.num_kv_heads; head += heads_of_job) {
      SelectJob job{};
      job.row = row_index;
      job.kv_head = head;
      job.num_kv_heads = heads_of_job;
      job.scanned = scanned_shape(row.shape, options);
      job.num_chunks = (job.scanned.num_blocks + kScanBlocks - 1) / kScanBlocks;
      job.mass_stride = static_cast<std::size_t>((job.scanned.num_blocks + kLanes - 1) / kLanes) *
                        std::size_t{kLanes};
      job.first_mass = num_masses;
      job.first_reference = num_references;
      num_masses += num_vectors(job) * job.mass_stride;
      num_references += num_vectors(job) * static_cast<std::size_t>(job.num_chunks);
      const int index = static_cast<int>(jobs.size());
      jobs.push_back(job);
      if (options.is_two_level(row.shape.num_blocks)) {
        items.push_back({index, head, kWholeJob});
        continue;
      }
      for (int h = head; h < head + heads_of_job; ++h) {
        if (!split) {
          items.push_back({index, h, kAllChunks});
          continue;
        }
        for (int chunk = 0; chunk < job.num_chunks; ++chunk) {
          items.push_back({index, h, chunk});
        }
      }
    }
  }

  int items_of_job(const SelectJob& job, int chunk) const {
    if (chunk == kWholeJob) {
      return 1;
    }
    return job.num_kv_heads * (chunk == kAllChunks ? 1 : job.num_chunks);
  }

  std::size_t selected_at(int row, int kv_head) const {
    return static_cast<std::size_t>(row * shape.num_kv_heads + kv_head);
  }
  std::span<std::int32_t> whole_list(const SparseRow& row, int kv_head) {
    return std::span(lists).subspan(row.list_of_head(kv_head),
                                    static_cast<std::size_t>(row.shape.num_selected()));
  }
  void add_selected(int row_index);

  // The query heads of one KV head, f32 [group][head_dim].
  const float* queries_of(const SelectJob& job, int kv_head, RowsView queries) const {
    const SparseRow& row = row_of(job);
    const SequenceRows& rows = sequence_of(row);
    return queries.data + static_cast<std::size_t>(rows.first_row + row.row) * queries.row_stride +
           static_cast<std::size_t>(kv_head * shape.group * shape.head_dim);
  }
  // list: positions in the table; empty: all of it.
  static const std::byte* record_at(const EntryRecords& records, std::span<const std::int32_t> list,
                                    int i) {
    const int entry = list.empty() ? i : list[static_cast<std::size_t>(i)];
    KAREZ_DCHECK(!records.block_at(entry).is_none(), "a block of the context is not in the table");
    return records.record(entry);
  }
  EntryRecords records_of(const SelectJob& job, const KeyIndexView& index, int kv_head) const {
    const SequenceRows& rows = sequence_of(row_of(job));
    return {index, kv_head, rows.tables[table_group], rows.archived};
  }

  // list: positions of the blocks to scan; empty: all.
  void scan_head(const IndexScan& index_scan, const SelectJob& job, int kv_head, int begin_chunk,
                 int end_chunk, const KeyIndexView& index, RowsView queries_view,
                 std::span<const std::int32_t> list, Scratch& s);
  void scan(const IndexScan& index_scan, const SelectJob& job, int kv_head, int chunk,
            const KeyIndexView& index, std::span<const std::int32_t> list, Scratch& s);
  void make_list(const SelectJob& job, std::span<const std::int32_t> list, Scratch& s);
  void run_two_levels(const IndexScan& index_scan, const SelectJob& job, const KeyIndexView& index,
                      RowsView queries, Scratch& s);
};

void RowSelector::Impl::scan_head(const IndexScan& index_scan, const SelectJob& job, int kv_head,
                                  int begin_chunk, int end_chunk, const KeyIndexView& index,
                                  RowsView queries, std::span<const std::int32_t> list,
                                  Scratch& s) {
  // The scan fetches ahead; nobody else fetches the first ones, and queries take their time.
  const EntryRecords records = records_of(job, index, kv_head);
  const int first = begin_chunk * kScanBlocks;
  const std::size_t record_bytes = key_index_block_bytes(index.kind(), shape.head_dim);
  for (int b = first; b < std::min(first + kScanAhead, job.scanned.num_blocks); ++b) {
    const std::byte* record = record_at(records, list, b);
    for (std::size_t line = 0; line < record_bytes; line += kCacheLineBytes) {
      __builtin_prefetch(record + line);
    }
  }
  s.queries.prepare(index.kind(), queries_of(job, kv_head, queries), shape.score_scale);
  for (int chunk = begin_chunk; chunk < end_chunk; ++chunk) {
    scan(index_scan, job, kv_head, chunk, index, list, s);
  }
}

void RowSelector::Impl::scan(const IndexScan& index_scan, const SelectJob& job, int kv_head,
                             int chunk, const KeyIndexView& index,
                             std::span<const std::int32_t> list, Scratch& s) {
  const EntryRecords records = records_of(job, index, kv_head);
  const int num_blocks = job.scanned.num_blocks;
  const int first = chunk * kScanBlocks;
  IndexChunk& blocks = s.chunk;
  blocks.num_blocks = std::min(kScanBlocks, num_blocks - first);
  blocks.num_records = std::min(kScanBlocks + kScanAhead, num_blocks - first);
  for (int b = 0; b < blocks.num_records; ++b) {
    blocks.records[b] = record_at(records, list, first + b);
  }
  blocks.last_tokens =
      first + blocks.num_blocks == num_blocks ? row_of(job).place % kBlockSize + 1 : kBlockSize;
  const auto vector = static_cast<std::size_t>((kv_head - job.kv_head) * shape.group);
  const auto num_chunks = static_cast<std::size_t>(job.num_chunks);
  const std::size_t reference =
      job.first_reference + vector * num_chunks + static_cast<std::size_t>(chunk);
  const ChunkMasses out{
      masses.data() + job.first_mass + vector * job.mass_stride + static_cast<std::size_t>(first),
      job.mass_stride, references.data() + reference, sums.data() + reference, num_chunks};
  index_scan.run(s.queries.view(), blocks, s.scores.data(), out);
}

// As make_list() leaves them, before any was made.
void RowSelector::Impl::add_selected(int row_index) {
  const SparseRow& row = sparse.rows[static_cast<std::size_t>(row_index)];
  // Of those that are scanned in full.
  const SelectionShape scanned = scanned_shape(row.shape, options);
  const auto num_runners_up = static_cast<std::size_t>(
      std::min(options.runners_up, scanned.recent_begin - scanned.sink_blocks - scanned.num_best));
  for (int head = 0; head < shape.num_kv_heads; ++head) {
    SelectedBlocks entry{row.sequence,          row.position, head, row.is_hint,
                         whole_list(row, head), {},           {}};
    if (options.list_masses) {
      entry.masses = std::span(list_masses).subspan(row.list_of_head(head), entry.blocks.size());
    }
    if (num_runners_up > 0) {
      entry.runners_up =
          std::span(runners_up)
              .subspan(selected_at(row_index, head) * static_cast<std::size_t>(options.runners_up),
                       num_runners_up);
    }
    selected.push_back(entry);
  }
}

void RowSelector::Impl::make_list(const SelectJob& job, std::span<const std::int32_t> list,
                                  Scratch& s) {
  const auto num_chunks = static_cast<std::size_t>(job.num_chunks);
  const auto num_blocks = static_cast<std::size_t>(job.scanned.num_blocks);
  s.heads.clear();
  for (std::size_t v = 0; v < num_vectors(job); ++v) {
    const std::size_t reference = job.first_reference + v * num_chunks;
    s.heads.push_back({std::span(masses).subspan(job.first_mass + v * job.mass_stride, num_blocks),
                       std::span(references).subspan(reference, num_chunks),
                       std::span(sums).subspan(reference, num_chunks)});
  }
  const SparseRow& row = row_of(job);
  SelectedBlocks& entry = selected[selected_at(job.row, job.kv_head)];
  entry.blocks = whole_list(row, job.kv_head);
  SelectionExtras extras;
  if (!entry.masses.empty()) {
    extras.masses =
        std::span(list_masses).subspan(row.list_of_head(job.kv_head), entry.masses.size());
  }
  if (!entry.runners_up.empty()) {
    const std::size_t first =
        selected_at(job.row, job.kv_head) * static_cast<std::size_t>(options.runners_up);
    extras.runners_up = std::span(runners_up).subspan(first, entry.runners_up.size());
  }
  select_blocks(job.scanned, s.heads, kScanBlocks, s.selector, entry.blocks, extras);
  if (!list.empty()) {
    for (const std::span<std::int32_t> blocks : {entry.blocks, extras.runners_up}) {
      for (std::int32_t& block : blocks) {
        block = list[static_cast<std::size_t>(block)];
      }
    }
  }
  for (int head = job.kv_head + 1; head < job.kv_head + job.num_kv_heads; ++head) {
    SelectedBlocks& copy = selected[selected_at(job.row, head)];
    copy.blocks = whole_list(row, head);
    std::ranges::copy(entry.blocks, copy.blocks.begin());
    copy.masses = entry.masses;
    copy.runners_up = entry.runners_up;
  }
}

void RowSelector::Impl::run_two_levels(const IndexScan& index_scan, const SelectJob& job,
                                       const KeyIndexView& index, RowsView queries, Scratch& s) {
  s.coarse.start(row_of(job).shape);
  {
    const IndexScan coarse_scan(shape.cpu_level, KeyIndexKind::kR2);
    for (int head = job.kv_head; head < job.kv_head + job.num_kv_heads; ++head) {
      s.queries.prepare(KeyIndexKind::kR2, queries_of(job, head, queries), shape.score_scale);
      const SequenceRows& rows = sequence_of(row_of(job));
      s.coarse.add_head(coarse_scan, s.queries.view(), index, head, rows.tables[table_group],
                        s.scores, rows.archived);
    }
  }
  const std::span<const std::int32_t> list = s.coarse.list(job.scanned, s.selector);
  for (int head = job.kv_head; head < job.kv_head + job.num_kv_heads; ++head) {
    scan_head(index_scan, job, head, 0, job.num_chunks, index, queries, list, s);
  }
  make_list(job, list, s);
}

RowSelector::RowSelector(const SelectorShape& shape, const SparseOptions& options)
    : impl_(std::make_unique<Impl>(shape, options)) {}
RowSelector::~RowSelector() = default;

void RowSelector::plan(std::span<const SequenceRows> sequences, std::size_t table_group) {
  Impl& self = *impl_;
  self.sequences = sequences;
  self.table_group = table_group;
  self.sparse = find_sparse_rows(sequences, self.options, self.shape.num_kv_heads);
  self.jobs.clear();
  self.items.clear();
  self.selected.clear();
  const auto num_rows = static_cast<int>(self.sparse.rows.size());
  const int heads_of_job =
      self.options.select_per == SelectPer::kHead ? 1 : self.shape.num_kv_heads;
  const bool split =
      num_rows * self.shape.num_kv_heads / heads_of_job < kJobsPerThread * self.shape.max_threads;
  std::size_t num_masses = 0;
  std::size_t num_references = 0;
  for (int row = 0; row < num_rows; ++row) {
    self.add_jobs(row, split, num_masses, num_references);
  }
  // Long contexts first, so that no thread begins one at the end.
  std::stable_sort(self.items.begin(), self.items.end(),
                   [&self](const ScanItem& a, const ScanItem& b) {
                     const auto chunks = [&self](const ScanItem& item) {
                       const SelectJob& job = self.jobs[static_cast<std::size_t>(item.job)];
                       return item.chunk < 0 ? job.num_chunks : 1;
                     };
                     return chunks(a) > chunks(b);
                   });
  const auto grow = [](auto& buffer, std::size_t size) {
    if (buffer.size() < size) {
      buffer.resize(size);
    }
  };
  grow(self.masses, num_masses);
  grow(self.references, num_references);
  grow(self.sums, num_references);
  grow(self.lists, self.sparse.num_selected);
  if (self.options.list_masses) {
    grow(self.list_masses, self.sparse.num_selected);
  }
  grow(self.runners_up,
       self.sparse.rows.size() *
           static_cast<std::size_t>(self.shape.num_kv_heads * self.options.runners_up));
  if (self.finished_items.size() < self.jobs.size()) {
    self.finished_items = std::vector<Counter>(self.jobs.size());
  }
  for (Counter& counter : self.finished_items) {
    counter.value.store(0, std::memory_order_relaxed);
  }
  for (std::size_t layer = 0; layer < self.next_item.size(); ++layer) {
    self.next_item[layer].value.store(0, std::memory_order_relaxed);
    self.finished_jobs[layer].value.store(0, std::memory_order_relaxed);
  }
  for (int row = 0; row < num_rows; ++row) {
    self.add_selected(row);
  }
}

std::span<const SparseRow> RowSelector::rows() const { return impl_->sparse.rows; }

bool RowSelector::run(int layer, const KeyIndexView& index, RowsView queries, int thread) {
  Impl& self = *impl_;
  Scratch& s = self.scratch[static_cast<std::size_t>(thread)];
  auto& next = self.next_item[static_cast<std::size_t>(layer)].value;
  auto& finished_jobs = self.finished_jobs[static_cast<std::size_t>(layer)].value;
  const IndexScan index_scan(self.shape.cpu_level, index.kind());
  bool is_last_job = false;
  while (true) {
    const auto claimed = static_cast<std::size_t>(next.fetch_add(1, std::memory_order_relaxed));
    if (claimed >= self.items.size()) {
      return is_last_job;
    }
    const ScanItem& item = self.items[claimed];
    const SelectJob& job = self.jobs[static_cast<std::size_t>(item.job)];
    if (item.chunk == kWholeJob) {
      self.run_two_levels(index_scan, job, index, queries, s);
    } else {
      const int begin = item.chunk < 0 ? 0 : item.chunk;
      const int end = item.chunk < 0 ? job.num_chunks : item.chunk + 1;
      self.scan_head(index_scan, job, item.kv_head, begin, end, index, queries, {}, s);
    }
    // Whoever finishes a job's last item sees the masses of the others, and readies the counter for
    // the next layer.
    auto& finished = self.finished_items[static_cast<std::size_t>(item.job)].value;
    if (finished.fetch_add(1, std::memory_order_acq_rel) + 1 < self.items_of_job(job, item.chunk)) {
      continue;
    }
    finished.store(0, std::memory_order_relaxed);
    if (item.chunk != kWholeJob) {
      self.make_list(job, {}, s);
    }
    if (finished_jobs.fetch_add(1, std::memory_order_acq_rel) + 1 ==
        static_cast<int>(self.jobs.size())) {
      is_last_job = true;
    }
  }
}

std::span<const std::int32_t> RowSelector::list(int row, int kv_head) const {
  return impl_->selected[impl_->selected_at(row, kv_head)].blocks;
}

std::span<SelectedBlocks> RowSelector::selected() { return impl_->selected; }

std::int64_t RowSelector::num_archived() const {
  std::int64_t count = 0;
  for (const SelectedBlocks& entry : impl_->selected) {
    const SequenceRows& rows = impl_->sequences[static_cast<std::size_t>(entry.sequence)];
    count += static_cast<std::int64_t>(archived_of(entry.blocks, rows.archived).size());
  }
  return count;
}

std::int64_t RowSelector::num_dropped() const {
  std::int64_t dropped = 0;
  for (std::size_t i = 0; i < impl_->selected.size(); ++i) {
    const SelectedBlocks& entry = impl_->selected[i];
    const SparseRow& row =
        impl_->sparse.rows[i / static_cast<std::size_t>(impl_->shape.num_kv_heads)];
    KAREZ_DCHECK(!entry.blocks.empty() && entry.blocks.back() == row.place / kBlockSize,
                 "a row attends to its own block");
    dropped += row.shape.num_selected() - static_cast<std::int64_t>(entry.blocks.size());
  }
  return dropped;
}

}  // namespace karez
