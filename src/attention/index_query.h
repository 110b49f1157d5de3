// The query heads of one (row, KV head) in the form that the index kernels want, and which kernels.
//
// r2, r3: rotated as the keys were, then 8 bits with one scale a head. minmax, mean: scaled only.
// Thread: an IndexQueries is used by one thread. Owns: its arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention/index_kernels.h"
#include "attention/key_index.h"
#include "base/cpu_features.h"

namespace karez {

class IndexQueries {
 public:
  IndexQueries(int group, int head_dim);

  // queries: f32 [group][head_dim]. score_scale: log2(e) times what multiplies q k.
  // A query that is zero or not finite tells nothing: all tokens score alike.
  void prepare(KeyIndexKind kind, const float* queries, float score_scale);
  // Valid until the next prepare().
  IndexQuery view() const;

 private:
  void prepare_codes(KeyIndexKind kind, std::size_t vector, const float* query, float score_scale);

  int group_;
  int head_dim_;
  std::vector<float> rotated_;      // [head_dim]
  std::vector<std::int8_t> codes_;  // [group][head_dim]
  std::vector<float> factors_;      // [group]
  std::vector<float> offsets_;      // [group]
  std::vector<float> scaled_;       // [group][head_dim]
};

// Scans of one thread with the kernel of a kind, as long as it lives. Meanwhile denormals are
// flushed: shares of far-away blocks are below the normal range, where arithmetic is slow and no
// one cares.
class IndexScan {
 public:
  // Requires: level <= detected_cpu_level().
  IndexScan(CpuLevel level, KeyIndexKind kind);
  ~IndexScan();
  IndexScan(const IndexScan&) = delete;
  IndexScan& operator=(const IndexScan&) = delete;

  // scores: scratch, see ScanKernel.
  void run(const IndexQuery& query, const IndexChunk& chunk, float* scores,
           const ChunkMasses& out) const {
    scan_(query, chunk, scores, out);
  }

 private:
  ScanKernel scan_;
  [[maybe_unused]] unsigned control_ = 0;  // of floating point, as it was before
};

}  // namespace karez
