#include "attention/paged_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attention/attention_scratch.h"
#include "attention/coarse_scan.h"
#include "attention/kernel_table.h"
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

const KernelSet& kernel_set_for(CpuLevel level) {
  switch (level) {
#if defined(__x86_64__)
    case CpuLevel::kAvx2:
      return kAvx2Kernels;
    case CpuLevel::kAvx512:
      return kAvx512Kernels;
    case CpuLevel::kAvx512Bf16:
      return kAvx512Bf16Kernels;
    case CpuLevel::kAmxBf16:
      return kAmxBf16Kernels;
#endif
    default:
      return kPortableKernels;
  }
}

const AttentionKernels& kernels_for(CpuLevel level, KvType type) {
  const KernelSet& set = kernel_set_for(level);
  switch (type) {
    case KvType::kF32:
      return set.f32;
    case KvType::kBf16:
      return set.bf16;
    case KvType::kQ8_0:
      break;
  }
  return set.q8_0;
}

class CpuPagedAttention final : public PagedAttention {
 public:
  CpuPagedAttention(const KVCacheSpec& spec, const AttentionOptions& options)
      : head_dim_(spec.head_dim),
        num_heads_(options.num_heads),
        num_kv_heads_(spec.num_kv_heads),
        type_(spec.type),
        layout_(BlockLayout::of(spec.type, spec.head_dim)),
        kernels_(kernels_for(options.cpu_level, spec.type)),
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
        dropped_blocks_(static_cast<std::size_t>(spec.num_layers)),
        next_item_(static_cast<std::size_t>(spec.num_layers)),
        scratch_(static_cast<std::size_t>(options.max_threads)) {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      for (const int layer : groups_[g].layers) {
        group_of_layer_[static_cast<std::size_t>(layer)] = g;
      }
    }
    const std::size_t bytes = ThreadScratch{}.carve(nullptr, head_dim_, type_);
    scratch_bytes_.resize(bytes * scratch_.size());
    // Kernels may compute with rows that no query fills; their results are ignored.
    std::fill_n(scratch_bytes_.data(), bytes * scratch_.size(), std::byte{0});
    for (std::size_t i = 0; i < scratch_.size(); ++i) {
      scratch_[i].carve(scratch_bytes_.data() + i * bytes, head_dim_, type_);
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
      KAREZ_DCHECK(rows.num_gone % kBlockSize == 0 && rows.num_gone <= rows.first_position,
                   "whole blocks before the rows are gone");
    }
    int split_jobs = 0;
    int split_chunks = 0;
    const auto count_splits = [&](const GroupPlan& plan) {
      split_jobs = std::max(split_jobs, plan.num_split_jobs);
      split_chunks = std::max(split_chunks, plan.num_split_chunks);
    };
    has_sparse_rows_ = false;
    std::ranges::fill(dropped_blocks_, 0);
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
      dropped_blocks_[static_cast<std::size_t>(layer)] = selector_.num_dropped();
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
    const std::int64_t dropped = dropped_blocks_[static_cast<std::size_t>(layer)];
    return (plan_of(layer).blocks_read - dropped) * static_cast<std::int64_t>(layout_.slot_bytes);
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
  // Past the last chunk there is: a list may have been shortened since the plan.
  int chunk_end_of(const TileJob& job) const {
    return job.sparse_row < 0
               ? job.chunk_end
               : (static_cast<int>(list_of(job).size()) + kChunkBlocks - 1) / kChunkBlocks;
  }

  // Chunk of the list of a sparse row: its blocks stand side by side, as if they were the context.
  void find_listed_blocks(const Step& step, const TileJob& job, int chunk,
                          ChunkBlocks& blocks) const {
    const std::span<const std::int32_t> list = list_of(job);
    const auto first = static_cast<std::size_t>(chunk * kChunkBlocks);
    const std::size_t count = std::min<std::size_t>(kChunkBlocks, list.size() - first);
    const BlockTableView table = table_of(step, job);
    const SlotId* slots = step.view.slots_of_head(job.kv_head);
    for (std::size_t i = first + count; i < std::min(list.size(), first + 2 * count); ++i) {
      __builtin_prefetch(slots + table[static_cast<std::size_t>(list[i])].value);
    }
    blocks.first_position = chunk * kChunkTokens;
    blocks.begin = 0;
    blocks.end = static_cast<int>(count);
    for (std::size_t i = 0; i < count; ++i) {
      set_block(step, job, table[static_cast<std::size_t>(list[first + i])], blocks,
                static_cast<int>(i));
    }
  }

  void set_block(const Step& step, const TileJob& job, BlockId block, ChunkBlocks& blocks,
                 int b) const {
    KAREZ_DCHECK(!block.is_none(), "a visible block is not in the table");
    const std::byte* slot = step.view.slot(job.kv_head, block);
    blocks.keys[b] = slot + layout_.keys_offset;
    blocks.values[b] = slot + layout_.values_offset;
    blocks.key_scales[b] = slot + layout_.key_scales_offset;
    blocks.value_scales[b] = slot + layout_.value_scales_offset;
  }
  BlockTableView table_of(const Step& step, const TileJob& job) const {
    return sequences_[static_cast<std::size_t>(job.sequence)]
        .tables[group_of_layer_[static_cast<std::size_t>(step.layer)]];
  }

  // Of the job's first row. Where a table is shorter than the positions, all arithmetic of blocks
  // and chunks is in places (SequenceRows::num_gone).
  int place_of(const Step& step, const TileJob& job) const {
    const SequenceRows& rows = sequences_[static_cast<std::size_t>(job.sequence)];
    return rows.place_of(rows.first_position + job.first_row, step.plan.window);
  }

  // Blocks [begin, end) of a chunk that any row of the job sees.
  void find_blocks(const Step& step, const TileJob& job, int chunk, ChunkBlocks& blocks) const {
    if (job.sparse_row >= 0) {
      return find_listed_blocks(step, job, chunk, blocks);
    }
    const int first_row = place_of(step, job);
    const int first = std::max(first_visible(first_row, step.plan.window), chunk * kChunkTokens);
    const int end = std::min(first_row + job.num_rows, (chunk + 1) * kChunkTokens);
    const int chunk_block = chunk * kChunkBlocks;
    blocks.first_position = chunk * kChunkTokens;
    blocks.begin = first / kBlockSize - chunk_block;
    blocks.end = (end + kBlockSize - 1) / kBlockSize - chunk_block;
    const BlockTableView table = table_of(step, job);
    const SlotId* slots = step.view.slots_of_head(job.kv_head);
    // The slot numbers of the chunk after: looked up next time, when memory is busy.
    const auto table_end = static_cast<int>(table.size());
    for (int b = 0; b < kChunkBlocks && chunk_block + kChunkBlocks + b < table_end; b += 4) {
      const BlockId block = table[static_cast<std::size_t>(chunk_block + kChunkBlocks + b)];
      if (!block.is_none()) {
        __builtin_prefetch(slots + block.value);
      }
    }
    for (int b = blocks.begin; b < blocks.end; ++b) {
      set_block(step, job, table[static_cast<std::size_t>(chunk_block + b)], blocks, b);
    }
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

  void prepare_tile(const Step& step, const TileJob& job) const {
    QueryTile& tile = step.scratch.tile;
    tile.num_vectors = job.num_rows * shape_.group;
    tile.first_position = place_of(step, job);
    tile.window = step.plan.window;
    if (job.sparse_row >= 0) {
      // The list ends with the row's own block.
      const SparseRow& row = selector_.rows()[static_cast<std::size_t>(job.sparse_row)];
      tile.first_position =
          (static_cast<int>(list_of(job).size()) - 1) * kBlockSize + row.place % kBlockSize;
    }
  }
  void load_queries(const Step& step, const TileJob& job) const {
    const SequenceRows& rows = sequences_[static_cast<std::size_t>(job.sequence)];
    const auto row = static_cast<std::size_t>(rows.first_row + job.first_row);
    kernels_.load_queries(step.scratch.tile,
                          step.queries.data + row * step.queries.row_stride + head_offset(job),
                          step.queries.row_stride);
  }
  void finish(const Step& step, const TileJob& job) const {
    const SequenceRows& rows = sequences_[static_cast<std::size_t>(job.sequence)];
    const auto row = static_cast<std::size_t>(rows.first_row + job.first_row);
    const auto row_floats = static_cast<std::size_t>(num_heads_ * head_dim_);
    kernels_.finish(step.scratch.tile, step.scratch.state,
                    step.out + row * row_floats + head_offset(job), row_floats);
  }
  std::size_t head_offset(const TileJob& job) const {
    return static_cast<std::size_t>(job.kv_head * shape_.group * head_dim_);
  }

  void run_item(Step& step, const WorkItem& item, const WorkItem* following) {
    const TileJob& job = step.plan.jobs[static_cast<std::size_t>(item.job)];
    prepare_tile(step, job);
    load_queries(step, job);
    const int begin = item.chunk < 0 ? job.chunk_begin : item.chunk;
    const int job_end = chunk_end_of(job);
    const int end = item.chunk < 0 ? job_end : std::min(item.chunk + 1, job_end);
    ChunkBlocks blocks[2];
    if (begin < end) {
      find_blocks(step, job, begin, blocks[0]);
    }
    clear(step.scratch.state);
    for (int chunk = begin; chunk < end; ++chunk) {
      ChunkBlocks& current = blocks[(chunk - begin) % 2];
      ChunkBlocks& next = blocks[(chunk - begin + 1) % 2];
      bool more = chunk + 1 < end;
      if (more) {
        find_blocks(step, job, chunk + 1, next);
      } else if (following != nullptr) {
        const TileJob& next_job = step.plan.jobs[static_cast<std::size_t>(following->job)];
        const int next_chunk = following->chunk < 0 ? next_job.chunk_begin : following->chunk;
        more = next_chunk < chunk_end_of(next_job);
        if (more) {
          find_blocks(step, next_job, next_chunk, next);
        }
      }
      set_next(current, more ? &next : nullptr);
      const Partial part = job.split_index < 0 ? step.scratch.part : split_partial(job, chunk);
      kernels_.attend_chunk(step.scratch.tile, current, part);
      if (job.split_index < 0) {
        kernels_.merge(step.scratch.tile, part, step.scratch.state);
      }
    }
    if (job.split_index < 0 || is_last(job)) {
      finish_job(step, job);
    }
  }

  // True for the thread that finishes the last chunk of a split job; makes the partials of the
  // others visible to it and readies the counter for the next layer.
  bool is_last(const TileJob& job) {
    auto& finished = counters_[static_cast<std::size_t>(job.split_index)].unfinished;
    if (finished.fetch_add(1, std::memory_order_acq_rel) + 1 < job.chunk_end - job.chunk_begin) {
      return false;
    }
    finished.store(0, std::memory_order_relaxed);
    return true;
  }

  void finish_job(const Step& step, const TileJob& job) const {
    if (job.split_index >= 0) {
      const int end = chunk_end_of(job);
      for (int chunk = job.chunk_begin; chunk < end; ++chunk) {
        kernels_.merge(step.scratch.tile, split_partial(job, chunk), step.scratch.state);
      }
    }
    finish(step, job);
    if (sparse_.recall_stride > 0 && job.sparse_row >= 0) {
      measure_recall(step, job);
    }
  }

  void measure_recall(const Step& step, const TileJob& job) const {
    const SequenceRows& rows = sequences_[static_cast<std::size_t>(job.sequence)];
    const SparseRow& row = selector_.rows()[static_cast<std::size_t>(job.sparse_row)];
    if (row.position % sparse_.recall_stride != 0) {
      return;
    }
    const float* query =
        step.queries.data +
        static_cast<std::size_t>(rows.first_row + job.first_row) * step.queries.row_stride +
        head_offset(job);
    const std::vector<float> masses = recalled_mass(recall_shape_, step.view, table_of(step, job),
                                                    job.kv_head, row.place, query, list_of(job));
    for (std::size_t h = 0; h < masses.size(); ++h) {
      step.scratch.recall.push_back({step.layer, job.sequence, row.position,
                                     job.kv_head * shape_.group + static_cast<int>(h), masses[h]});
    }
  }

  static void clear(const Partial& state) { std::fill_n(state.seen, kTileVectors, 0.0F); }

  int head_dim_;
  int num_heads_;
  int num_kv_heads_;
  KvType type_;
  BlockLayout layout_;
  const AttentionKernels& kernels_;
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
  std::vector<GroupPlan> plans_;              // [num_layer_groups]
  std::vector<std::int64_t> dropped_blocks_;  // [num_layers], from the lists
  std::vector<std::atomic<int>> next_item_;   // [num_layers]
  std::vector<SplitCounter> counters_;        // by TileJob::split_index
  AlignedBytes partials_;                     // by split chunk
  AlignedBytes scratch_bytes_;
  std::vector<ThreadScratch> scratch_;  // [max_threads]
};

Expected<void> check_options(const KVCacheSpec& spec, const AttentionOptions& options) {
  const auto invalid = [](std::string message) {
    return fail(StatusCode::kInvalidArgument, std::move(message));
  };
  if (options.num_heads <= 0 || options.num_heads % spec.num_kv_heads != 0 ||
      options.num_heads / spec.num_kv_heads > kTileVectors) {
    return invalid(fmt::format(
        "attention: num_heads is {}, allowed are multiples of num_kv_heads = {} up to {} times it",
        options.num_heads, spec.num_kv_heads, kTileVectors));
  }
  if (!std::isfinite(options.scale) || options.scale <= 0.0F) {
    return invalid(
        fmt::format("attention: scale is {}, allowed are finite values above 0", options.scale));
  }
  if (!std::isfinite(options.logit_softcap) || options.logit_softcap < 0.0F) {
    return invalid(fmt::format("attention: logit_softcap is {}, allowed are finite values from 0",
                               options.logit_softcap));
  }
  const SparseOptions& sparse = options.sparse;
  for (const auto& [name, value] : {std::pair{"token_budget", sparse.token_budget},
                                    {"sink_tokens", sparse.sink_tokens},
                                    {"dense_layers", sparse.dense_layers},
                                    {"runners_up", sparse.runners_up}}) {
    if (value < 0) {
      return invalid(fmt::format("attention: {} is {}, allowed are values from 0", name, value));
    }
  }
  if (sparse.recent_window < 1) {
    return invalid(fmt::format("attention: recent_window is {}, allowed are values from 1",
                               sparse.recent_window));
  }
  if (options.max_threads < 1) {
    return invalid(fmt::format("attention: max_threads is {}, allowed are values from 1",
                               options.max_threads));
  }
  if (options.cpu_level > detected_cpu_level()) {
    return invalid(fmt::format("attention: cpu_level is {}, this processor supports up to {}",
                               to_string(options.cpu_level), to_string(detected_cpu_level())));
  }
  return {};
}

}  // namespace

Expected<std::unique_ptr<PagedAttention>> PagedAttention::create(const KVCacheSpec& spec,
                                                                 const AttentionOptions& options) {
  if (auto valid = spec.validate(); !valid) {
    return fail(valid.error());
  }
  if (auto valid = check_options(spec, options); !valid) {
    return fail(valid.error());
  }
  return std::make_unique<CpuPagedAttention>(spec, options);
}

}  // namespace karez
