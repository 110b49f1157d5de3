// How much each pair of an aged window is worth keeping, for one layer and KV head: the mean
// attention that its key gets from the queries in and behind the window (Kara, arXiv 2607.01237).
//
// What is kept is chosen elsewhere (token2chunk.h). A score is a function of the arguments alone,
// but for rounding, which differs between CPU levels.
// Thread: one scorer for each thread; it owns scratch memory only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/cpu_features.h"
#include "compress/compression_options.h"
#include "compress/window_score_table.h"
#include "kv/kv_types.h"

namespace karez {

// The keys of one layer and KV head: slots as kv/block_layout.h says, all 16 tokens written.
struct WindowKeys {
  KvType type = KvType::kBf16;
  int head_dim = 0;
  std::span<const std::byte* const> window;
  // Of the sequence's first tokens, which draw attention whatever they say. They get no score, but
  // take their part of a query's attention, so that a query that looks nowhere else counts little.
  std::span<const std::byte* const> sinks;
  int first_position = 0;  // of the window
  float scale = 1.0F;      // of query x key, as in attention
  float softcap = 0.0F;    // as in attention; 0: off
};

// Ascending positions. Each: the query of one of the heads that share the KV head.
struct WindowQueries {
  std::span<const std::uint16_t* const> rows;  // bf16 [head_dim] each, as of QueryRing::query()
  std::span<const std::int32_t> positions;
};

class WindowScorer {
 public:
  // Of kLastQueries: so many of the queries that are given.
  static constexpr int kLastQueries = 16;

  // Requires: level <= detected_cpu_level().
  explicit WindowScorer(CpuLevel level);

  // Scores of the window's tokens into out, f32 [16 x window blocks]; higher is better.
  //
  //   kBidirectional  mean over the queries of softmax(query x keys) over window and sinks: each
  //                   query on all keys, also those after it
  //   kCausal         the same, a query on the keys up to its own position
  //   kLastQueries    the latest queries alone, causal, softmax over the window's keys alone: as
  //                   in SnapKV (arXiv 2404.14469), where sinks compete with the other keys
  //   kRecent         the place in the window
  //   kRandom         in [0, 1), by seed and position; the same in every process
  //
  // A query with a number that is not finite, or whose attention is not finite, counts nothing; a
  // key with such a number gets 0 and takes nothing from others. Without a query that counts, all
  // get 0. kRecent and kRandom read neither keys nor queries.
  void score(CompressScore kind, const WindowKeys& keys, const WindowQueries& queries,
             std::uint64_t seed, std::span<float> out);

 private:
  struct alignas(64) Line {
    float lanes[kBlockSize];
  };

  void widen_keys(const WindowKeys& keys, bool with_sinks);
  void score_by_attention(CompressScore kind, const WindowKeys& keys, const WindowQueries& queries,
                          std::span<float> out);

  AddWeights add_weights_;
  std::vector<Line> keys_;            // [blocks][head_dim][16]
  std::vector<std::int32_t> hidden_;  // tokens of keys_ that are not finite
  std::vector<float> queries_;        // [kScoreTileQueries][head_dim]
  std::vector<Line> scores_;          // scratch of the kernels
};

}  // namespace karez
