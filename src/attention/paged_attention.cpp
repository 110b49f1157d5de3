#include "attention/paged_attention.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "attention/archive_page.h"
#include "attention/attention_scratch.h"
#include "attention/coarse_scan.h"
#include "attention/job_blocks.h"
#include "attention/kernel_choice.h"
#include "attention/kernel_table.h"
#include "attention/key_rotation.h"
#include "attention/query_recorder.h"
#include "attention/row_ranker.h"
#include "attention/row_writer.h"
#include "attention/work_plan.h"
#include "base/check.h"
#include "kv/block_layout.h"

namespace karez {
namespace {

constexpr float kLog2E = 1.44269504088896340736F;

static_assert(kChunkTokens == kChunkBlocks * kBlockSize && kLanes == kBlockSize);

// Splits are counted down from here; padded, because threads write to neighbours at once.
struct alignas(kCacheLineBytes) SplitCounter {
  std::atomic<int> unfinished{0};
};

class CpuPagedAttention final : public PagedAttention {
 public:
  CpuPagedAttention(const KVCacheSpec& spec, const AttentionOptions& options)
      : head_dim_(spec.head_dim),
        num_heads_(options.num_heads),
        num_kv_heads_(spec.num_kv_heads),
        layout_(BlockLayout::of(spec.type, spec.head_dim)),
        kernels_(kernels_for(options.cpu_level, spec.type)),
        archive_kernels_(archive_kernels_for(options.cpu_level)),
        shape_{options.num_heads / spec.num_kv_heads, spec.num_kv_heads, options.max_threads},
        groups_(spec.layer_groups()),
        group_of_layer_(static_cast<std::size_t>(spec.num_layers)),
        sparse_(options.sparse),
        recall_shape_{spec.type, spec.head_dim, shape_.group, options.scale, options.logit_softcap},
        selector_({spec.num_layers, spec.num_kv_heads, shape_.group, spec.head_dim,
                   options.scale * kLog2E, options.max_threads, options.cpu_level},
                  options.sparse),
        ranker_({spec.num_layers, spec.num_kv_heads, shape_.group, spec.head_dim,
                 options.scale * kLog2E, options.max_threads, options.cpu_level},
                options.sparse),
        writer_(spec),
        recorder_(spec.num_kv_heads, shape_.group, spec.head_dim),
        num_to_rank_(static_cast<std::size_t>(options.max_threads),
                     std::vector<int>(static_cast<std::size_t>(spec.num_kv_heads))),
        plans_(groups_.size()),
        list_reads_(static_cast<std::size_t>(spec.num_layers)),
        next_item_(static_cast<std::size_t>(spec.num_layers)),
        scratch_(static_cast<std::size_t>(options.max_threads)) {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      for (const int layer : groups_[g].layers) {
        group_of_layer_[static_cast<std::size_t>(layer)] = g;
      }
    }
    const std::size_t bytes = ThreadScratch{}.carve(nullptr, head_dim_);
    scratch_bytes_.resize(bytes * scratch_.size());
    // Kernels may compute with rows that no query fills; their results are ignored.
    std::fill_n(scratch_bytes_.data(), bytes * scratch_.size(), std::byte{0});
    for (std::size_t i = 0; i < scratch_.size(); ++i) {
      scratch_[i].carve(scratch_bytes_.data() + i * bytes, head_dim_);
      QueryTile& tile = scratch_[i].tile;
      tile.head_dim = head_dim_;
      tile.group = shape_.group;
      tile.score_scale = options.scale * kLog2E;
      if (options.logit_softcap > 0.0F) {
        tile.softcap = options.logit_softcap * kLog2E;
        tile.softcap_gain = 2.0F * kLog2E * options.scale / options.logit_softcap;
      }
    }
  }

  void plan(std::span<const SequenceRows> sequences) override {
    sequences_.assign(sequences.begin(), sequences.end());
    for (const SequenceRows& rows : sequences_) {
      KAREZ_CHECK(rows.num_gone % kBlockSize == 0 && rows.num_gone <= rows.first_position,
                  "whole blocks before the rows are gone");
    }
    int split_jobs = 0;
    int split_chunks = 0;
    const auto count_splits = [&](const GroupPlan& plan) {
      split_jobs = std::max(split_jobs, plan.num_split_jobs);
      split_chunks = std::max(split_chunks, plan.num_split_chunks);
    };
    has_sparse_rows_ = false;
    std::ranges::fill(list_reads_, ListReads{});
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      plans_[g] = make_group_plan(sequences, groups_[g].window, shape_);
      count_splits(plans_[g]);
      if (sparse_.is_on() && groups_[g].window == 0) {
        selector_.plan(sequences_, g);
        if (sparse_.rank_ahead) {
          ranker_.plan(sequences_, g, selector_.rows());
        }
        has_sparse_rows_ = !selector_.rows().empty();
        if (has_sparse_rows_) {
          sparse_plan_ = make_group_plan(sequences, 0, shape_, selector_.rows());
          count_splits(sparse_plan_);
        }
      }
    }
    if (static_cast<std::size_t>(split_jobs) > counters_.size()) {
      counters_ = std::vector<SplitCounter>(static_cast<std::size_t>(split_jobs));
    }
    for (SplitCounter& counter : counters_) {
      counter.unfinished.store(0, std::memory_order_relaxed);
    }
    partials_.resize(static_cast<std::size_t>(split_chunks) * partial_bytes());
    for (auto& next : next_item_) {
      next.store(0, std::memory_order_relaxed);
    }
    writer_.plan(sequences_);
    recorder_.plan(sequences_);
  }

  void store(int layer, const KVLayerView& layer_view, const KeyIndexView& index, RowsView keys,
             RowsView values, int thread, int num_threads) override {
    const bool is_indexed = layer >= sparse_.dense_layers;
    writer_.run(group_of_layer_[static_cast<std::size_t>(layer)], layer_view,
                is_indexed ? index : KeyIndexView(), keys, values, thread, num_threads);
  }

  void select(int layer, const KeyIndexView& index, RowsView queries, int thread,
              int /*num_threads*/) override {
    if (!is_sparse(layer)) {
      if (thread == 0 && listener_ != nullptr) {
        listener_->on_selected(layer, {});
      }
      return;
    }
    KAREZ_DCHECK(!index.is_none() && index.kind() == sparse_.block_index,
                 "a layer that selects has an index of the kind in the options");
    const bool last = selector_.run(layer, index, queries, thread);
    if (last && listener_ != nullptr) {
      listener_->on_selected(layer, selector_.selected());
    }
    if (last) {
      ListReads& reads = list_reads_[static_cast<std::size_t>(layer)];
      reads.pages = selector_.num_archived();
      reads.not_blocks = selector_.num_dropped() + reads.pages;
    }
  }
  void set_selection_listener(SelectionListener* listener) override { listener_ = listener; }

  bool can_rank(int layer) const override {
    return sparse_.rank_ahead && listener_ != nullptr && is_sparse(layer);
  }
  void rank(int layer, const KVLayerView& layer_view, const KeyIndexView& index, RowsView queries,
            int thread, int /*num_threads*/) override {
    if (!can_rank(layer) || !index.has_coarse()) {
      return;
    }
    const auto i = static_cast<std::size_t>(thread);
    std::vector<int>& wanted = num_to_rank_[i];
    for (int head = 0; head < num_kv_heads_; ++head) {
      wanted[static_cast<std::size_t>(head)] = listener_->num_to_rank(layer, head);
    }
    if (ranker_.run(layer, layer_view, index, queries, wanted, thread)) {
      listener_->on_ranked(layer, ranker_.ranked());
    }
  }
  int num_sparse_rows() const override {
    return has_sparse_rows_ ? static_cast<int>(selector_.rows().size()) : 0;
  }

  void attend(int layer, const KVLayerView& layer_view, RowsView queries, float* out, int thread,
              int num_threads) override {
    const GroupPlan& plan = plan_of(layer);
    if (plan.window == 0) {
      recorder_.run(layer, queries, thread, num_threads);
    }
    Step step{layer, layer_view, queries, out, plan, scratch_[static_cast<std::size_t>(thread)]};
    auto& next = next_item_[static_cast<std::size_t>(layer)];
    const int num_items = static_cast<int>(plan.items.size());
    alignas(kCacheLineBytes) std::byte registers[kRegisterStateBytes];
    if (kernels_.save_registers != nullptr) {
      kernels_.save_registers(registers);
    }
    const auto claim = [&next] { return next.fetch_add(1, std::memory_order_relaxed); };
    int item = claim();
    while (item < num_items) {
      // An item is claimed ahead, so that its first keys can be fetched during the current one; not
      // one of the last, which threads without work should take.
      const bool is_ahead = next.load(std::memory_order_relaxed) + num_threads <= num_items;
      const int following = is_ahead ? claim() : num_items;
      run_item(step, plan.items[static_cast<std::size_t>(item)],
               following < num_items ? &plan.items[static_cast<std::size_t>(following)] : nullptr);
      item = is_ahead ? following : claim();
    }
    if (kernels_.restore_registers != nullptr) {
      kernels_.restore_registers(registers);
    }
  }

  std::int64_t planned_read_bytes(int layer) const override {
    const ListReads& lists = list_reads_[static_cast<std::size_t>(layer)];
    return (plan_of(layer).blocks_read - lists.not_blocks) *
               static_cast<std::int64_t>(layout_.slot_bytes) +
           planned_archived_pages(layer) *
               static_cast<std::int64_t>(ArchiveLayout::of(head_dim_).page_bytes);
  }
  std::int64_t planned_archived_pages(int layer) const override {
    return plan_of(layer).pages_read + list_reads_[static_cast<std::size_t>(layer)].pages;
  }
  std::int64_t planned_index_bytes(int layer) const override {
    std::int64_t bytes = 0;
    if (is_sparse(layer)) {
      const auto record_bytes =
          static_cast<std::int64_t>(key_index_block_bytes(sparse_.block_index, head_dim_));
      const auto coarse_bytes = static_cast<std::int64_t>(coarse_record_bytes(head_dim_));
      for (const SparseRow& row : selector_.rows()) {
        const SelectionShape scanned = scanned_shape(row.shape, sparse_);
        bytes += scanned.num_blocks * record_bytes;
        if (sparse_.is_two_level(row.shape.num_blocks)) {
          bytes += row.shape.recent_begin * coarse_bytes;
        }
      }
    }
    return bytes * num_kv_heads_;
  }

  std::vector<RecallSample> take_recall() override {
    std::vector<RecallSample> out;
    for (ThreadScratch& scratch : scratch_) {
      out.insert(out.end(), scratch.recall.begin(), scratch.recall.end());
      scratch.recall.clear();
    }
    return out;
  }

 private:
  // What a layer's lists hold, against the plan, which takes all entries for blocks.
  struct ListReads {
    std::int64_t not_blocks = 0;  // dropped, or pages
    std::int64_t pages = 0;
  };
  struct Step {
    int layer;
    const KVLayerView& view;
    RowsView queries;
    float* out;
    const GroupPlan& plan;
    ThreadScratch& scratch;
  };

  bool is_sparse(int layer) const {
    return has_sparse_rows_ && layer >= sparse_.dense_layers &&
           groups_[group_of_layer_[static_cast<std::size_t>(layer)]].window == 0;
  }
  const GroupPlan& plan_of(int layer) const {
    return is_sparse(layer) ? sparse_plan_
                            : plans_[group_of_layer_[static_cast<std::size_t>(layer)]];
  }

  std::size_t partial_bytes() const {
    Carver carver(nullptr);
    take_partial(carver, head_dim_);
    return carver.used();
  }
  Partial split_partial(const TileJob& job, int chunk) const {
    const auto index = static_cast<std::size_t>(job.first_split_chunk + chunk - job.chunk_begin);
    Carver carver(partials_.data() + index * partial_bytes());
    return take_partial(carver, head_dim_);
  }

  // Of a sparse row's job.
  std::span<const std::int32_t> list_of(const TileJob& job) const {
    return selector_.list(job.sparse_row, job.kv_head);
  }
  BlockTableView table_of(const Step& step, const TileJob& job) const {
    return rows_of(job).tables[group_of_layer_[static_cast<std::size_t>(step.layer)]];
  }
  const SequenceRows& rows_of(const TileJob& job) const {
    return sequences_[static_cast<std::size_t>(job.sequence)];
  }
  const SparseRow& sparse_row_of(const TileJob& job) const {
    return selector_.rows()[static_cast<std::size_t>(job.sparse_row)];
  }
  JobBlocks blocks_of(const Step& step, const TileJob& job) const {
    const BlockTableView table = table_of(step, job);
    return job.sparse_row < 0
               ? JobBlocks(job, rows_of(job), table, step.plan.window)
               : JobBlocks(job, rows_of(job), table, sparse_row_of(job), list_of(job));
  }

  // Keys to be fetched while `blocks` are worked on: those of `next`, or their own (which costs
  // nothing) where there is none.
  static void set_next(ChunkBlocks& blocks, const ChunkBlocks* next) {
    int from = next == nullptr ? 0 : next->begin;
    for (int b = blocks.begin; b < blocks.end; ++b) {
      const bool more = next != nullptr && from < next->end;
      blocks.next_keys[b] = more ? next->keys[from++] : blocks.keys[b];
    }
  }

  // Queries of a job: [num_rows][group][head_dim], rows at step.queries.row_stride.
  const float* queries_of(const Step& step, const TileJob& job) const {
    const auto row = static_cast<std::size_t>(rows_of(job).first_row + job.first_row);
    return step.queries.data + row * step.queries.row_stride + head_offset(job);
  }
  void finish(const Step& step, const TileJob& job) const {
    const auto row = static_cast<std::size_t>(rows_of(job).first_row + job.first_row);
    const auto row_floats = static_cast<std::size_t>(num_heads_ * head_dim_);
    kernels_.finish(step.scratch.tile, step.scratch.state,
                    step.out + row * row_floats + head_offset(job), row_floats);
  }
  std::size_t head_offset(const TileJob& job) const {
    return static_cast<std::size_t>(job.kv_head * shape_.group * head_dim_);
  }

  void load_tile(const Step& step, const TileJob& job, const JobBlocks& blocks) const {
    QueryTile& tile = step.scratch.tile;
    tile.group = shape_.group;
    tile.first_position = blocks.first_position();
    kernels_.load_queries(tile, queries_of(step, job), step.queries.row_stride);
  }
  // Rotated queries, as if they were heads of one row, which sees all pages.
  void load_archive_tile(const Step& step, const TileJob& job, const JobBlocks& blocks) const {
    QueryTile& tile = step.scratch.tile;
    tile.group = tile.num_vectors;
    tile.first_position = blocks.num_pages() * kBlockSize - 1;
    const auto dim = static_cast<std::size_t>(head_dim_);
    const auto floats = static_cast<std::size_t>(shape_.group) * dim;
    for (int row = 0; row < job.num_rows; ++row) {
      const auto r = static_cast<std::size_t>(row);
      std::copy_n(queries_of(step, job) + r * step.queries.row_stride, floats,
                  step.scratch.rotated + r * floats);
    }
    for (int v = 0; v < tile.num_vectors; ++v) {
      rotate_key({step.scratch.rotated + static_cast<std::size_t>(v) * dim, dim});
    }
    archive_kernels_.load_queries(tile, step.scratch.rotated, 0);
  }
  // Where the main kernels leave register state alone, that of these is set around them only.
  void attend_pages(const Step& step, const ChunkBlocks& blocks, const Partial& part) const {
    const bool saves =
        kernels_.save_registers == nullptr && archive_kernels_.save_registers != nullptr;
    alignas(kCacheLineBytes) std::byte registers[kRegisterStateBytes];
    if (saves) {
      archive_kernels_.save_registers(registers);
    }
    archive_kernels_.attend_chunk(step.scratch.tile, blocks, part);
    if (saves) {
      archive_kernels_.restore_registers(registers);
    }
  }

  void run_item(Step& step, const WorkItem& item, const WorkItem* following) {
    const TileJob& job = step.plan.jobs[static_cast<std::size_t>(item.job)];
    const JobBlocks job_blocks = blocks_of(step, job);
    QueryTile& tile = step.scratch.tile;
    tile.num_vectors = job.num_rows * shape_.group;
    tile.window = step.plan.window;
    const int end = item.chunk < 0 ? job.end() : item.chunk + 1;
    int chunk = job_blocks.next(item.chunk < 0 ? job.chunk_begin : item.chunk);
    ChunkBlocks blocks[2];
    int side = 0;
    if (chunk < end) {
      job_blocks.find(layout_, head_dim_, step.view, chunk, blocks[side]);
    }
    clear(step.scratch.state);
    clear(step.scratch.archive_state);
    bool is_loaded = false;
    bool is_archive_loaded = false;
    while (chunk < end) {
      const int next_chunk = job_blocks.next(chunk + 1);
      ChunkBlocks& current = blocks[side];
      ChunkBlocks& next = blocks[side ^= 1];
      bool more = next_chunk < end;
      if (more) {
        job_blocks.find(layout_, head_dim_, step.view, next_chunk, next);
      } else if (following != nullptr) {
        more = find_first(step, *following, next);
      }
      set_next(current, more ? &next : nullptr);
      const bool is_archived = job_blocks.is_archived(chunk);
      const Partial part = job.split_index < 0 ? step.scratch.part : split_partial(job, chunk);
      if (is_archived) {
        if (!std::exchange(is_archive_loaded, true)) {
          load_archive_tile(step, job, job_blocks);
        }
        attend_pages(step, current, part);
      } else {
        if (!std::exchange(is_loaded, true)) {
          load_tile(step, job, job_blocks);
        }
        kernels_.attend_chunk(tile, current, part);
      }
      if (job.split_index < 0) {
        kernels_.merge(tile, part, is_archived ? step.scratch.archive_state : step.scratch.state);
      }
      chunk = next_chunk;
    }
    if (job.split_index < 0 || is_last(job)) {
      finish_job(step, job, job_blocks);
    }
  }

  // The first blocks of an item. False: it has none.
  bool find_first(const Step& step, const WorkItem& item, ChunkBlocks& out) const {
    const TileJob& job = step.plan.jobs[static_cast<std::size_t>(item.job)];
    const JobBlocks job_blocks = blocks_of(step, job);
    const int wanted = item.chunk < 0 ? job.chunk_begin : item.chunk;
    const int first = job_blocks.next(wanted);
    if (first >= job.end() || (item.chunk >= 0 && first != item.chunk)) {
      return false;
    }
    job_blocks.find(layout_, head_dim_, step.view, first, out);
    return true;
  }

  // True for the thread that finishes the last chunk of a split job; makes the partials of the
  // others visible to it and readies the counter for the next layer.
  bool is_last(const TileJob& job) {
    auto& finished = counters_[static_cast<std::size_t>(job.split_index)].unfinished;
    if (finished.fetch_add(1, std::memory_order_acq_rel) + 1 < job.end() - job.chunk_begin) {
      return false;
    }
    finished.store(0, std::memory_order_relaxed);
    return true;
  }

  void finish_job(const Step& step, const TileJob& job, const JobBlocks& job_blocks) const {
    QueryTile& tile = step.scratch.tile;
    const ThreadScratch& scratch = step.scratch;
    if (job.split_index >= 0) {
      for (int chunk = job_blocks.next(job.chunk_begin); chunk < job.end();
           chunk = job_blocks.next(chunk + 1)) {
        kernels_.merge(tile, split_partial(job, chunk),
                       job_blocks.is_archived(chunk) ? scratch.archive_state : scratch.state);
      }
    }
    tile.group = shape_.group;
    if (job_blocks.num_pages() > 0) {
      const auto dim = static_cast<std::size_t>(head_dim_);
      for (int v = 0; v < tile.num_vectors; ++v) {
        rotate_key_back({scratch.archive_state.out + static_cast<std::size_t>(v) * dim, dim});
      }
      kernels_.merge(tile, scratch.archive_state, scratch.state);
    }
    finish(step, job);
    if (sparse_.recall_stride > 0 && job.sparse_row >= 0) {
      measure_recall(step, job);
    }
  }

  void measure_recall(const Step& step, const TileJob& job) const {
    const SparseRow& row = sparse_row_of(job);
    if (row.position % sparse_.recall_stride != 0) {
      return;
    }
    const std::vector<float> masses =
        recalled_mass(recall_shape_, step.view, table_of(step, job), job.kv_head, row.place,
                      queries_of(step, job), list_of(job), rows_of(job).archived);
    for (std::size_t h = 0; h < masses.size(); ++h) {
      step.scratch.recall.push_back({step.layer, job.sequence, row.position,
                                     job.kv_head * shape_.group + static_cast<int>(h), masses[h]});
    }
  }

  static void clear(const Partial& state) { std::fill_n(state.seen, kTileVectors, 0.0F); }

  int head_dim_;
  int num_heads_;
  int num_kv_heads_;
  BlockLayout layout_;
  const AttentionKernels& kernels_;
  const AttentionKernels& archive_kernels_;
  TileShape shape_;
  std::vector<LayerGroup> groups_;
  std::vector<std::size_t> group_of_layer_;
  SparseOptions sparse_;
  RecallShape recall_shape_;
  RowSelector selector_;
  RowRanker ranker_;
  RowWriter writer_;
  QueryRecorder recorder_;
  std::vector<std::vector<int>> num_to_rank_;  // [threads][num_kv_heads]
  SelectionListener* listener_ = nullptr;      // borrowed

  std::vector<SequenceRows> sequences_;
  GroupPlan sparse_plan_;  // of the layers that select; if there are sparse rows
  bool has_sparse_rows_ = false;
  std::vector<GroupPlan> plans_;             // [num_layer_groups]
  std::vector<ListReads> list_reads_;        // [num_layers]
  std::vector<std::atomic<int>> next_item_;  // [num_layers]
  std::vector<SplitCounter> counters_;       // by TileJob::split_index
  AlignedBytes partials_;                    // by split chunk
  AlignedBytes scratch_bytes_;
  std::vector<ThreadScratch> scratch_;  // [max_threads]
};

}  // namespace

Expected<std::unique_ptr<PagedAttention>> PagedAttention::create(const KVCacheSpec& spec,
                                                                 const AttentionOptions& options) {
  if (auto valid = spec.validate(); !valid) {
    return fail(valid.error());
  }
  if (auto valid = options.validate(spec); !valid) {
    return fail(valid.error());
  }
  return std::make_unique<CpuPagedAttention>(spec, options);
}

}  // namespace karez
