// Attention alone, over a KV cache of made-up numbers in scattered slots, shaped as SmolLM2-135M
// (9 query heads, 3 KV heads, head dim 64).
//
//   decode/S/D/type/level/T    S sequences of D tokens, one row each. One iteration is a step of
//                              all layers. GB/s of KV read; of_bandwidth is that over what plain
//                              reading gets with as many threads.
//   prefill/D/type/level/T     chunks of 512 rows up to D tokens, one layer. GFLOP/s, counting
//                              visible (query, key) pairs only.
//
// --benchmark_filter picks by name.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <map>
#include <random>
#include <thread>

#include "attention/memory_bandwidth.h"
#include "attention/paged_attention.h"
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
        attention_->store(layer, kv_->layer(layer), {keys_.data(), kNumKvHeads * kHeadDim},
                          {keys_.data(), kNumKvHeads * kHeadDim}, thread, config_.num_threads);
      });
    }
  }
  void attend() {
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      crew_.run([&](int thread) {
        attention_->attend(layer, kv_->layer(layer), {queries_.data(), kNumHeads * kHeadDim},
                           out_.data(), thread, config_.num_threads);
      });
    }
  }
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

void register_all() {
  const int all_threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  for (const CpuLevel level : supported_cpu_levels()) {
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
