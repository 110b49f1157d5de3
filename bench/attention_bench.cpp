// Attention alone, over a KV cache of made-up numbers in scattered slots, shaped as SmolLM2-135M
// (9 query heads, 3 KV heads, head dim 64).
//
//   decode/S/D/type/level/T     S sequences of D tokens, one row each. One iteration is a step of
//                               all layers. GB/s of KV read; of_bandwidth is that over what plain
//                               reading gets with as many threads.
//   sparse/S/D/B/index/level/T  the same with a token budget of B (bf16). select_ms and attend_ms
//                               are their parts of the best step.
//   store/D/index/level/T       writing D tokens, one layer, with and without an index.
//   select/D/L/level/T          selection alone (r2, budget 2048) of one row of D tokens, one
//                               layer, over an index of made-up keys, in L levels (1 or 2).
//   top_k/N/M                   choosing 118 of N blocks for one KV head with 3 query heads; M is 1
//                               where the list's masses and runners-up are made too.
//   prefill/D/type/level/T      chunks of 512 rows up to D tokens, one layer. GFLOP/s, counting
//                               visible (query, key) pairs only.
//
// --benchmark_filter picks by name.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <random>
#include <thread>

#include "attention/block_selector.h"
#include "attention/block_store.h"
#include "attention/key_index.h"
#include "attention/memory_bandwidth.h"
#include "attention/paged_attention.h"
#include "kv/block_layout.h"
#include "kv/kv_cache_manager.h"

namespace karez {
namespace {

constexpr int kNumHeads = 9;
constexpr int kNumKvHeads = 3;
constexpr int kHeadDim = 64;
constexpr int kPrefillRows = 512;

// Threads that meet before and after each call of run(), as a graph's threads do.
class Crew {
 public:
  explicit Crew(int size) : start_(size), end_(size) {
    for (int i = 1; i < size; ++i) {
      workers_.emplace_back([this, i] {
        while (true) {
          start_.arrive_and_wait();
          if (body_ == nullptr) {
            return;
          }
          (*body_)(i);
          end_.arrive_and_wait();
        }
      });
    }
  }
  ~Crew() {
    body_ = nullptr;
    start_.arrive_and_wait();
    for (std::thread& worker : workers_) {
      worker.join();
    }
  }
  void run(const std::function<void(int)>& body) {
    body_ = &body;
    start_.arrive_and_wait();
    body(0);
    end_.arrive_and_wait();
  }

 private:
  const std::function<void(int)>* body_ = nullptr;
  std::barrier<> start_;
  std::barrier<> end_;
  std::vector<std::thread> workers_;
};

struct Config {
  int num_sequences;
  int depth;
  KvType type;
  CpuLevel level;
  int num_threads;
  int num_layers;
  int token_budget = 0;
  KeyIndexKind index = KeyIndexKind::kR2;
  int levels = 1;
};

template <class T>
T value_or_exit(Expected<T> expected) {
  if (!expected) {
    fmt::print(stderr, "{}\n", expected.error().to_string());
    std::exit(1);
  }
  return std::move(*expected);
}

double bandwidth(int num_threads) {
  static std::map<int, double> measured;
  auto [entry, is_new] = measured.try_emplace(num_threads, 0.0);
  if (is_new) {
    entry->second = value_or_exit(measure_read_bandwidth(num_threads)) / 1e9;
  }
  return entry->second;
}

class Bench {
 public:
  explicit Bench(const Config& config) : config_(config), crew_(config.num_threads) {
    KVCacheSpec spec;
    spec.num_layers = config.num_layers;
    spec.num_kv_heads = kNumKvHeads;
    spec.head_dim = kHeadDim;
    spec.type = config.type;
    const std::int64_t blocks =
        static_cast<std::int64_t>(config.num_sequences) * (config.depth / kBlockSize + 2);
    kv_ = value_or_exit(KVCacheManager::create(
        spec,
        blocks * spec.num_layers * kNumKvHeads * static_cast<std::int64_t>(spec.slot_bytes())));
    AttentionOptions options;
    options.num_heads = kNumHeads;
    options.scale = 0.125F;
    options.max_threads = config.num_threads;
    options.cpu_level = config.level;
    options.sparse.token_budget = config.token_budget;
    options.sparse.block_index = config.index;
    if (options.sparse.is_on()) {
      index_.emplace(value_or_exit(KeyIndex::create(spec, config.index, block_id_ranges(*kv_))));
    }
    attention_ = value_or_exit(PagedAttention::create(spec, options));
    std::mt19937 random(1);
    std::uniform_real_distribution<float> unit(-2.0F, 2.0F);
    const int rows = std::max(kPrefillRows, config.num_sequences);
    queries_.resize(static_cast<std::size_t>(rows * kNumHeads * kHeadDim));
    keys_.resize(static_cast<std::size_t>(rows * kNumKvHeads * kHeadDim));
    std::generate(queries_.begin(), queries_.end(), [&] { return unit(random); });
    std::generate(keys_.begin(), keys_.end(), [&] { return unit(random); });
    out_.resize(queries_.size());
    for (int s = 0; s < config.num_sequences; ++s) {
      sequences_.push_back(kv_->open());
    }
  }

  // Chunks by turns, so that the slots of a sequence are not neighbours.
  void fill() {
    for (int at = 0; at < config_.depth; at += kPrefillRows) {
      for (const SequenceId sequence : sequences_) {
        plan({sequence}, std::min(kPrefillRows, config_.depth - at));
        store();
      }
    }
  }
  void plan_decode() { plan(sequences_, 1); }
  void plan_chunk(int num_rows) { plan({sequences_.front()}, num_rows); }
  void forget_rows(int num_rows) {
    for (const SequenceId sequence : sequences_) {
      if (!kv_->truncate(sequence, kv_->num_tokens(sequence) - num_rows)) {
        std::abort();
      }
    }
  }
  void restart() { forget_rows(kv_->num_tokens(sequences_.front())); }
  void replan() { attention_->plan(rows_); }

  void store() {
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      crew_.run([&](int thread) {
        attention_->store(layer, kv_->layer(layer), index(layer),
                          {keys_.data(), kNumKvHeads * kHeadDim},
                          {keys_.data(), kNumKvHeads * kHeadDim}, thread, config_.num_threads);
      });
    }
  }
  // Seconds of select() and of attend().
  std::pair<double, double> sparse_step() {
    double select_seconds = 0.0;
    double attend_seconds = 0.0;
    const RowsView queries{queries_.data(), kNumHeads * kHeadDim};
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      const auto start = std::chrono::steady_clock::now();
      crew_.run([&](int thread) {
        attention_->select(layer, index(layer), queries, thread, config_.num_threads);
      });
      const auto middle = std::chrono::steady_clock::now();
      crew_.run([&](int thread) {
        attention_->attend(layer, kv_->layer(layer), queries, out_.data(), thread,
                           config_.num_threads);
      });
      const auto end = std::chrono::steady_clock::now();
      select_seconds += std::chrono::duration<double>(middle - start).count();
      attend_seconds += std::chrono::duration<double>(end - middle).count();
    }
    return {select_seconds, attend_seconds};
  }
  void attend() {
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      crew_.run([&](int thread) {
        attention_->attend(layer, kv_->layer(layer), {queries_.data(), kNumHeads * kHeadDim},
                           out_.data(), thread, config_.num_threads);
      });
    }
  }
  KeyIndexView index(int layer) const { return index_ ? index_->view(layer) : KeyIndexView(); }
  double step_bytes() const {
    return static_cast<double>(attention_->planned_read_bytes(0)) * config_.num_layers;
  }

 private:
  void plan(const std::vector<SequenceId>& sequences, int num_rows) {
    rows_.clear();
    for (const SequenceId sequence : sequences) {
      SequenceRows rows;
      rows.first_position = kv_->num_tokens(sequence);
      rows.num_rows = num_rows;
      rows.first_sparse_position = num_rows == 1 ? 0 : SequenceRows::kNeverSparse;
      rows.first_row = static_cast<int>(rows_.size()) * num_rows;
      if (!kv_->extend(sequence, num_rows)) {
        std::abort();
      }
      rows.tables.push_back(kv_->table(sequence, 0));
      rows_.push_back(rows);
    }
    attention_->plan(rows_);
  }

  Config config_;
  Crew crew_;
  std::unique_ptr<KVCacheManager> kv_;
  std::unique_ptr<PagedAttention> attention_;
  std::optional<KeyIndex> index_;
  std::vector<SequenceId> sequences_;
  std::vector<SequenceRows> rows_;
  std::vector<float> queries_;
  std::vector<float> keys_;
  std::vector<float> out_;
};

void decode(benchmark::State& state, const Config& config) {
  Bench bench(config);
  bench.fill();
  bench.plan_decode();
  bench.store();
  double best_seconds = 1e9;
  for (auto _ : state) {
    bench.replan();
    const auto start = std::chrono::steady_clock::now();
    bench.attend();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    best_seconds = std::min(best_seconds, elapsed.count());
    state.SetIterationTime(elapsed.count());
  }
  const double rate = bench.step_bytes() / best_seconds / 1e9;
  state.counters["GB/s"] = rate;
  state.counters["of_bandwidth"] = rate / bandwidth(config.num_threads);
}

void sparse(benchmark::State& state, const Config& config) {
  Bench bench(config);
  bench.fill();
  bench.plan_decode();
  bench.store();
  std::pair<double, double> best = {1e9, 1e9};
  for (auto _ : state) {
    bench.replan();
    const auto step = bench.sparse_step();
    if (step.first + step.second < best.first + best.second) {
      best = step;
    }
    state.SetIterationTime(step.first + step.second);
  }
  state.counters["select_ms"] = best.first * 1e3;
  state.counters["attend_ms"] = best.second * 1e3;
}

void store(benchmark::State& state, const Config& config) {
  Bench bench(config);
  for (auto _ : state) {
    double seconds = 0.0;
    for (int at = 0; at < config.depth; at += kPrefillRows) {
      bench.plan_chunk(std::min(kPrefillRows, config.depth - at));
      const auto start = std::chrono::steady_clock::now();
      bench.store();
      seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    state.SetIterationTime(seconds);
    bench.restart();
  }
}

void select_long(benchmark::State& state, const Config& config) {
  KVCacheSpec spec;
  spec.num_layers = 1;
  spec.num_kv_heads = kNumKvHeads;
  spec.head_dim = kHeadDim;
  const int num_blocks = config.depth / kBlockSize;
  const BlockIdRange range{0, static_cast<std::size_t>(num_blocks)};
  const int two_level_blocks = config.levels == 2 ? kTwoLevelBlocks : num_blocks;
  const KeyIndex index = value_or_exit(
      KeyIndex::create(spec, config.index, std::span(&range, 1), {}, two_level_blocks));
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> keys(std::size_t{kBlockSize} * kHeadDim);
  std::vector<std::byte> slot(BlockLayout::of(KvType::kF32, kHeadDim).slot_bytes);
  std::vector<BlockId> table;
  for (int b = 0; b < num_blocks; ++b) {
    table.emplace_back(static_cast<std::uint32_t>(b));
    for (int head = 0; head < kNumKvHeads; ++head) {
      std::generate(keys.begin(), keys.end(), [&] { return normal(random); });
      index_tokens(config.index, kHeadDim, index.view(0).record(head, table.back()), 0, kBlockSize,
                   {keys.data(), kHeadDim}, nullptr);
      if (index.view(0).has_coarse()) {
        store_in_block(KvType::kF32, kHeadDim, slot.data(), 0, kBlockSize, {keys.data(), kHeadDim},
                       {keys.data(), kHeadDim});
        index_mean(kHeadDim, index.view(0).coarse_record(head, table.back()), KvType::kF32,
                   slot.data(), nullptr);
      }
    }
  }
  SequenceRows rows;
  rows.tables = {table};
  rows.first_position = config.depth - 1;
  rows.num_rows = 1;
  rows.first_sparse_position = 0;
  SparseOptions options;
  options.token_budget = config.token_budget;
  options.two_level_blocks = two_level_blocks;
  RowSelector selector({1, kNumKvHeads, kNumHeads / kNumKvHeads, kHeadDim, 0.125F * 1.4427F,
                        config.num_threads, config.level},
                       options);
  std::vector<float> query(std::size_t{kNumHeads} * kHeadDim);
  std::generate(query.begin(), query.end(), [&] { return 3.0F * normal(random); });
  Crew crew(config.num_threads);
  for (auto _ : state) {
    selector.plan(std::span(&rows, 1), 0);
    const auto start = std::chrono::steady_clock::now();
    crew.run([&](int thread) {
      selector.run(0, index.view(0), {query.data(), kNumHeads * kHeadDim}, thread);
    });
    state.SetIterationTime(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
}

// With an argument of 1 the listener's part is made too: masses of the list and 16 runners-up.
void top_k_of_masses(benchmark::State& state) {
  const int num_blocks = static_cast<int>(state.range(0));
  const bool is_told = state.range(1) != 0;
  constexpr int kChunkOfBlocks = 64;
  const auto num_chunks =
      static_cast<std::size_t>((num_blocks + kChunkOfBlocks - 1) / kChunkOfBlocks);
  std::mt19937 random(1);
  std::vector<std::vector<float>> masses(3);
  std::vector<float> references(num_chunks, 0.0F);
  std::vector<float> sums(num_chunks, 1.0F);
  std::vector<HeadMasses> heads;
  for (auto& head : masses) {
    std::normal_distribution<float> normal(0.0F, 3.0F);
    for (int b = 0; b < num_blocks; ++b) {
      head.push_back(std::exp(normal(random)));
    }
    heads.push_back({head, references, sums});
  }
  const SelectionShape shape{num_blocks, 1, num_blocks - 9, 118};
  std::vector<std::int32_t> out(static_cast<std::size_t>(shape.num_selected()));
  std::vector<float> list_masses(is_told ? out.size() : 0);
  std::vector<std::int32_t> runners_up(is_told ? 16 : 0);
  SelectorScratch scratch;
  for (auto _ : state) {
    select_blocks(shape, heads, kChunkOfBlocks, scratch, out, {list_masses, runners_up});
    benchmark::DoNotOptimize(out.data());
  }
}

void prefill(benchmark::State& state, const Config& config) {
  Bench bench(config);
  double best_seconds = 1e9;
  for (auto _ : state) {
    double seconds = 0.0;
    for (int at = 0; at < config.depth; at += kPrefillRows) {
      bench.plan_chunk(std::min(kPrefillRows, config.depth - at));
      const auto start = std::chrono::steady_clock::now();
      bench.store();
      bench.attend();
      seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    best_seconds = std::min(best_seconds, seconds);
    state.SetIterationTime(seconds);
    bench.restart();
  }
  const double pairs = 0.5 * config.depth * (config.depth + 1.0) * config.num_layers;
  state.counters["GFLOP/s"] = pairs * kNumHeads * kHeadDim * 4 / best_seconds / 1e9;
}

void register_sparse(CpuLevel level, int all_threads) {
  const auto add = [](const std::string& name, const Config& config,
                      void (*run)(benchmark::State&, const Config&)) {
    benchmark::RegisterBenchmark(name.c_str(),
                                 [config, run](benchmark::State& state) { run(state, config); })
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  };
  struct Load {
    int sequences;
    int depth;
    int layers;
  };
  const KvType type = KvType::kBf16;
  // A third of the layers at 32,000 tokens, to fit into memory.
  for (const Load& load : {Load{8, 7900, 30}, Load{8, 32000, 10}, Load{1, 7900, 30}}) {
    for (const int budget : {512, 1024, 2048}) {
      add(fmt::format("sparse/{}/{}/{}/r2/{}/{}", load.sequences, load.depth, budget,
                      to_string(level), all_threads),
          {load.sequences, load.depth, type, level, all_threads, load.layers, budget}, sparse);
    }
  }
  for (const KeyIndexKind kind : {KeyIndexKind::kR3, KeyIndexKind::kMinMax, KeyIndexKind::kMean}) {
    add(fmt::format("sparse/8/7900/1024/{}/{}/{}", to_string(kind), to_string(level), all_threads),
        {8, 7900, type, level, all_threads, 30, 1024, kind}, sparse);
  }
  add(fmt::format("decode/8/32000/bf16/{}/{}", to_string(level), all_threads),
      {8, 32000, type, level, all_threads, 10}, decode);
  for (const int depth : {16384, 65536, 131072, 262144, 524288, 1048576}) {
    for (const int levels : {1, 2}) {
      Config config{1, depth, type, level, all_threads, 1, 2048};
      config.levels = levels;
      if (levels == 1 || depth > kTwoLevelBlocks * kBlockSize) {
        add(fmt::format("select/{}/{}/{}/{}", depth, levels, to_string(level), all_threads), config,
            select_long);
      }
    }
  }
  add(fmt::format("store/7900/none/{}/{}", to_string(level), all_threads),
      {1, 7900, type, level, all_threads, 1}, store);
  add(fmt::format("store/7900/r2/{}/{}", to_string(level), all_threads),
      {1, 7900, type, level, all_threads, 1, 2048}, store);
}

void register_all() {
  const int all_threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  auto* top_k = benchmark::RegisterBenchmark("top_k", top_k_of_masses);
  for (const int is_told : {0, 1}) {
    for (const int num_blocks : {494, 2000, 65536}) {
      top_k->Args({num_blocks, is_told});
    }
  }
  for (const CpuLevel level : supported_cpu_levels()) {
    register_sparse(level, all_threads);
    for (const KvType type : {KvType::kBf16, KvType::kF32, KvType::kQ8_0}) {
      for (const auto& [sequences, depth] : {std::pair{8, 7900}, {1, 7900}, {1, 512}}) {
        const Config config{sequences, depth, type, level, all_threads, 30};
        benchmark::RegisterBenchmark(fmt::format("decode/{}/{}/{}/{}/{}", sequences, depth,
                                                 to_string(type), to_string(level), all_threads)
                                         .c_str(),
                                     [config](benchmark::State& state) { decode(state, config); })
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond);
      }
      const Config config{1, 7900, type, level, all_threads, 1};
      benchmark::RegisterBenchmark(fmt::format("prefill/{}/{}/{}/{}", config.depth, to_string(type),
                                               to_string(level), all_threads)
                                       .c_str(),
                                   [config](benchmark::State& state) { prefill(state, config); })
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
}

}  // namespace
}  // namespace karez

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  karez::register_all();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
