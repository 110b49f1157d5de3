// Compression of one window of all layers and KV heads of SmolLM2-135M (30 layers, 3 KV heads, head
// dim 64), one thread, over slots of made-up numbers that lie scattered. One iteration is all 90
// heads.
//
//   score/W/Q/type/level  scores of W keys and 16 sinks from Q queries (bidirectional)
//   choose/W/chunk        W / 2 of W by scores
//   pack/W/type           copying W / 2 pairs into new blocks
//   load/W/type           W / 2 pairs as f32 rows
//
// --benchmark_filter picks by name.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "attention/block_store.h"
#include "base/bf16.h"
#include "compress/pair_pack.h"
#include "compress/token2chunk.h"
#include "compress/window_score.h"
#include "kv/block_layout.h"

namespace karez {
namespace {

constexpr int kHeads = 90;
constexpr int kHeadDim = 64;

std::size_t size_of(int value) { return static_cast<std::size_t>(value); }

// Blocks of all heads, in random order in memory.
class Slots {
 public:
  Slots(KvType type, int blocks_each)
      : slot_bytes_(BlockLayout::of(type, kHeadDim).slot_bytes),
        memory_(slot_bytes_ * size_of(kHeads * blocks_each)),
        of_head_(kHeads) {
    std::mt19937 random(1);
    std::vector<std::size_t> order(size_of(kHeads * blocks_each));
    for (std::size_t i = 0; i < order.size(); ++i) {
      order[i] = i;
    }
    std::ranges::shuffle(order, random);
    std::normal_distribution<float> normal;
    std::vector<float> rows(size_of(kBlockSize * kHeadDim));
    for (std::size_t i = 0; i < order.size(); ++i) {
      std::byte* slot = memory_.data() + order[i] * slot_bytes_;
      std::ranges::generate(rows, [&] { return normal(random); });
      store_in_block(type, kHeadDim, slot, 0, kBlockSize, {rows.data(), kHeadDim},
                     {rows.data(), kHeadDim});
      of_head_[i % kHeads].push_back(slot);
    }
  }
  const std::vector<std::byte*>& of(int head) const { return of_head_[size_of(head)]; }
  std::vector<const std::byte*> read(int head) const { return {of(head).begin(), of(head).end()}; }

 private:
  std::size_t slot_bytes_;
  std::vector<std::byte> memory_;
  std::vector<std::vector<std::byte*>> of_head_;
};

std::vector<float> random_scores(int count) {
  std::mt19937 random(2);
  std::uniform_real_distribution<float> uniform;
  std::vector<float> scores(size_of(count));
  std::ranges::generate(scores, [&] { return uniform(random); });
  return scores;
}

std::vector<std::int32_t> half_of(int window) {
  return choose_kept(CompressChunk::kToken2Chunk, 0, random_scores(window), window / 2);
}

void bench_score(benchmark::State& state, int window, int num_queries, KvType type,
                 CpuLevel level) {
  const int blocks = window / kBlockSize;
  const Slots slots(type, blocks + 1);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> queries(size_of(num_queries * kHeadDim));
  std::ranges::generate(queries, [&] { return to_bf16(normal(random)); });
  std::vector<const std::uint16_t*> rows;
  std::vector<std::int32_t> positions;
  for (int i = 0; i < num_queries; ++i) {
    rows.push_back(queries.data() + i * kHeadDim);
    positions.push_back(kBlockSize + 4 * i);
  }
  WindowScorer scorer(level);
  std::vector<float> out(size_of(window));
  for (auto _ : state) {
    for (int head = 0; head < kHeads; ++head) {
      const std::vector<const std::byte*> all = slots.read(head);
      WindowKeys keys;
      keys.type = type;
      keys.head_dim = kHeadDim;
      keys.sinks = std::span(all).first(1);
      keys.window = std::span(all).subspan(1);
      keys.first_position = kBlockSize;
      keys.scale = 0.125F;
      scorer.score(CompressScore::kBidirectional, keys, {rows, positions}, 0, out);
      benchmark::DoNotOptimize(out.data());
    }
  }
  const double flops = 2.0 * kHeads * kHeadDim * num_queries * (window + kBlockSize);
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops / 1e9, benchmark::Counter::kIsIterationInvariantRate);
}

void bench_choose(benchmark::State& state, int window, CompressChunk chunk) {
  const std::vector<float> scores = random_scores(window);
  for (auto _ : state) {
    for (int head = 0; head < kHeads; ++head) {
      benchmark::DoNotOptimize(choose_kept(chunk, 8, scores, window / 2));
    }
  }
}

void bench_pack(benchmark::State& state, int window, KvType type) {
  const int blocks = window / kBlockSize;
  const Slots from(type, blocks);
  const Slots to(type, blocks / 2);
  const std::vector<std::int32_t> kept = half_of(window);
  for (auto _ : state) {
    for (int head = 0; head < kHeads; ++head) {
      const std::vector<const std::byte*> source = from.read(head);
      pack_pairs(type, kHeadDim, source, kept, to.of(head));
    }
    benchmark::ClobberMemory();
  }
}

void bench_load(benchmark::State& state, int window, KvType type) {
  const Slots from(type, window / kBlockSize);
  const std::vector<std::int32_t> kept = half_of(window);
  std::vector<float> keys(kept.size() * kHeadDim);
  std::vector<float> values(kept.size() * kHeadDim);
  for (auto _ : state) {
    for (int head = 0; head < kHeads; ++head) {
      const std::vector<const std::byte*> source = from.read(head);
      load_pairs(type, kHeadDim, source, kept, keys.data(), values.data());
      benchmark::ClobberMemory();
    }
  }
}

template <class... Args>
void add(const std::string& name, void (*bench)(benchmark::State&, Args...), Args... args) {
  benchmark::RegisterBenchmark(name.c_str(), bench, args...)->Unit(benchmark::kMillisecond);
}

void add_all() {
  constexpr KvType kTypes[] = {KvType::kF32, KvType::kBf16, KvType::kQ8_0};
  constexpr int kWindow = 1024;
  for (const CpuLevel level : supported_cpu_levels()) {
    if (level <= CpuLevel::kAvx512) {  // those above have no kernels of their own
      add(fmt::format("score/{}/384/bf16/{}", kWindow, to_string(level)), bench_score, kWindow, 384,
          KvType::kBf16, level);
    }
  }
  add(fmt::format("score/{}/384/q8_0/best", kWindow), bench_score, kWindow, 384, KvType::kQ8_0,
      detected_cpu_level());
  for (const CompressChunk chunk :
       {CompressChunk::kToken2Chunk, CompressChunk::kNone, CompressChunk::kFixed}) {
    add(fmt::format("choose/{}/{}", kWindow, to_string(chunk)), bench_choose, kWindow, chunk);
  }
  for (const KvType type : kTypes) {
    add(fmt::format("pack/{}/{}", kWindow, to_string(type)), bench_pack, kWindow, type);
    add(fmt::format("load/{}/{}", kWindow, to_string(type)), bench_load, kWindow, type);
  }
}

}  // namespace
}  // namespace karez

int main(int argc, char** argv) {
  karez::add_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
