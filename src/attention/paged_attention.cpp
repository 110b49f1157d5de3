#include "attention/paged_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attention/block_store.h"
#include "attention/kernel_table.h"
#include "attention/work_plan.h"
#include "base/check.h"
#include "kv/block_layout.h"

namespace karez {
namespace {

constexpr float kLog2E = 1.44269504088896340736F;
constexpr std::size_t kCacheLineBytes = 64;

static_assert(kChunkTokens == kChunkBlocks * kBlockSize && kLanes == kBlockSize);

// Bytes at a cache line's border, not initialised.
class AlignedBytes {
 public:
  void resize(std::size_t bytes) {
    if (bytes <= size_) {
      return;
    }
    storage_ = std::make_unique_for_overwrite<std::byte[]>(bytes + kCacheLineBytes);
    size_ = bytes;
    void* p = storage_.get();
    std::size_t space = bytes + kCacheLineBytes;
    data_ = static_cast<std::byte*>(std::align(kCacheLineBytes, bytes, p, space));
  }
  std::byte* data() const { return data_; }

 private:
  std::unique_ptr<std::byte[]> storage_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Cuts consecutive arrays out of one buffer, each at a cache line's border.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <class T>
  T* take(std::size_t count) {
    auto* p = reinterpret_cast<T*>(base_ + used_);
    used_ += (count * sizeof(T) + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes;
    return p;
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

Partial take_partial(Carver& carver, int head_dim) {
  Partial p{};
  p.out = carver.take<float>(static_cast<std::size_t>(kTileVectors) *
                             static_cast<std::size_t>(head_dim));
  p.max = carver.take<float>(kTileVectors);
  p.sum = carver.take<float>(kTileVectors);
  p.seen = carver.take<float>(kTileVectors);
  return p;
}

// What one thread works in.
struct ThreadScratch {
  QueryTile tile{};
  Partial state{};
  Partial part{};

  std::size_t carve(std::byte* base, int head_dim, KvType type) {
    Carver carver(base);
    const auto dim = static_cast<std::size_t>(head_dim);
    constexpr std::size_t kScores = std::size_t{kTileVectors} * std::size_t{kScoreStride};
    constexpr std::size_t kDimStep = 32;
    const std::size_t padded_dim = (dim + kDimStep - 1) / kDimStep * kDimStep;
    tile.queries = carver.take<std::byte>(std::size_t{kTileVectors} * padded_dim * sizeof(float));
    tile.scores = carver.take<float>(kScores);
    tile.weights = carver.take<std::byte>(kScores * sizeof(float));
    // Key tiles of a head dim that is not a multiple of 32 read on behind the last block.
    constexpr std::size_t kTileBytes = 1024;
    tile.expanded = carver.take<std::byte>(
        type == KvType::kQ8_0 ? std::size_t{kChunkTokens} * dim * 2 + kTileBytes : 0);
    state = take_partial(carver, head_dim);
    part = take_partial(carver, head_dim);
    return carver.used();
  }
};

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
        plans_(groups_.size()),
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
    int split_jobs = 0;
    int split_chunks = 0;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      plans_[g] = make_group_plan(sequences, groups_[g].window, shape_);
      split_jobs = std::max(split_jobs, plans_[g].num_split_jobs);
      split_chunks = std::max(split_chunks, plans_[g].num_split_chunks);
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
    store_runs_.clear();
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      add_store_runs(static_cast<int>(s), sequences[s]);
    }
  }

  void store(int layer, const KVLayerView& layer_view, RowsView keys, RowsView values, int thread,
             int num_threads) override {
    const std::size_t group = group_of_layer_[static_cast<std::size_t>(layer)];
    const std::size_t units = store_runs_.size() * static_cast<std::size_t>(num_kv_heads_);
    const auto border = [&](int i) {
      return units * static_cast<std::size_t>(i) / static_cast<std::size_t>(num_threads);
    };
    for (std::size_t unit = border(thread); unit < border(thread + 1); ++unit) {
      const StoreRun& run = store_runs_[unit / static_cast<std::size_t>(num_kv_heads_)];
      const int head = static_cast<int>(unit % static_cast<std::size_t>(num_kv_heads_));
      const BlockTableView table = sequences_[static_cast<std::size_t>(run.sequence)].tables[group];
      const BlockId block = table[static_cast<std::size_t>(run.block)];
      KAREZ_DCHECK(!block.is_none(), "a row to be stored has no block");
      const auto rows_of = [&](RowsView view) {
        return TokenRows{view.data + static_cast<std::size_t>(run.row) * view.row_stride +
                             static_cast<std::size_t>(head * head_dim_),
                         view.row_stride};
      };
      store_in_block(type_, head_dim_, layer_view.slot(head, block), run.first_token,
                     run.num_tokens, rows_of(keys), rows_of(values));
    }
  }

  void attend(int layer, const KVLayerView& layer_view, RowsView queries, float* out, int thread,
              int num_threads) override {
    const GroupPlan& plan = plans_[group_of_layer_[static_cast<std::size_t>(layer)]];
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
    const GroupPlan& plan = plans_[group_of_layer_[static_cast<std::size_t>(layer)]];
    return plan.blocks_read * static_cast<std::int64_t>(layout_.slot_bytes);
  }

 private:
  // Consecutive rows that lie in one block.
  struct StoreRun {
    int sequence;
    int block;
    int first_token;
    int num_tokens;
    int row;  // in the batch
  };
  struct Step {
    int layer;
    const KVLayerView& view;
    RowsView queries;
    float* out;
    const GroupPlan& plan;
    ThreadScratch& scratch;
  };

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

  void add_store_runs(int sequence, const SequenceRows& rows) {
    int row = 0;
    while (row < rows.num_rows) {
      const int position = rows.first_position + row;
      const int first_token = position % kBlockSize;
      const int num_tokens = std::min(kBlockSize - first_token, rows.num_rows - row);
      store_runs_.push_back(
          {sequence, position / kBlockSize, first_token, num_tokens, rows.first_row + row});
      row += num_tokens;
    }
  }

  // Blocks [begin, end) of a chunk that any row of the job sees.
  void find_blocks(const Step& step, const TileJob& job, int chunk, ChunkBlocks& blocks) const {
    const SequenceRows& rows = sequences_[static_cast<std::size_t>(job.sequence)];
    const int first_row = rows.first_position + job.first_row;
    const int first = std::max(first_visible(first_row, step.plan.window), chunk * kChunkTokens);
    const int end = std::min(first_row + job.num_rows, (chunk + 1) * kChunkTokens);
    const int chunk_block = chunk * kChunkBlocks;
    blocks.first_position = chunk * kChunkTokens;
    blocks.begin = first / kBlockSize - chunk_block;
    blocks.end = (end + kBlockSize - 1) / kBlockSize - chunk_block;
    const BlockTableView table = rows.tables[group_of_layer_[static_cast<std::size_t>(step.layer)]];
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
      const BlockId block = table[static_cast<std::size_t>(chunk_block + b)];
      KAREZ_DCHECK(!block.is_none(), "a visible block is not in the table");
      const std::byte* slot = step.view.slot(job.kv_head, block);
      blocks.keys[b] = slot + layout_.keys_offset;
      blocks.values[b] = slot + layout_.values_offset;
      blocks.key_scales[b] = slot + layout_.key_scales_offset;
      blocks.value_scales[b] = slot + layout_.value_scales_offset;
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
    const SequenceRows& rows = sequences_[static_cast<std::size_t>(job.sequence)];
    QueryTile& tile = step.scratch.tile;
    tile.num_vectors = job.num_rows * shape_.group;
    tile.first_position = rows.first_position + job.first_row;
    tile.window = step.plan.window;
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
    const int end = item.chunk < 0 ? job.chunk_end : item.chunk + 1;
    ChunkBlocks blocks[2];
    find_blocks(step, job, begin, blocks[0]);
    clear(step.scratch.state);
    for (int chunk = begin; chunk < end; ++chunk) {
      ChunkBlocks& current = blocks[(chunk - begin) % 2];
      ChunkBlocks& next = blocks[(chunk - begin + 1) % 2];
      bool more = true;
      if (chunk + 1 < end) {
        find_blocks(step, job, chunk + 1, next);
      } else if (following != nullptr) {
        const TileJob& next_job = step.plan.jobs[static_cast<std::size_t>(following->job)];
        find_blocks(step, next_job, following->chunk < 0 ? next_job.chunk_begin : following->chunk,
                    next);
      } else {
        more = false;
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
      for (int chunk = job.chunk_begin; chunk < job.chunk_end; ++chunk) {
        kernels_.merge(step.scratch.tile, split_partial(job, chunk), step.scratch.state);
      }
    }
    finish(step, job);
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

  std::vector<SequenceRows> sequences_;
  std::vector<GroupPlan> plans_;  // [num_layer_groups]
  std::vector<StoreRun> store_runs_;
  std::vector<std::atomic<int>> next_item_;  // [num_layers]
  std::vector<SplitCounter> counters_;       // by TileJob::split_index
  AlignedBytes partials_;                    // by split chunk
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
