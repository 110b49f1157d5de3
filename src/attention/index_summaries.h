// The scan of indexes with one summary a block (minmax, mean), and the table of all kernels. As
// index_scan.h, of which it is the other part: the same rules.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/index_kernels.h"
#include "attention/index_scan.h"
#include "attention/kernel_common.h"

namespace karez {
namespace {

// Kinds with one score a block: the last block has none unless it is complete.
template <class Simd, class Ints, class Term>
inline void scan_summaries(const IndexQuery& query, const IndexChunk& chunk, float* scores,
                           const ChunkMasses& out, int record_lines, const Term& term) {
  using F = typename Simd::F;
  const int num_blocks = chunk.num_blocks - (chunk.last_tokens < kLanes ? 1 : 0);
  for (int v = 0; v < query.num_vectors; ++v) {
    const float* q = query.queries + v * query.head_dim;
    F top = Simd::broadcast(kMaskedScore);
    for (int first = 0; first < chunk.num_blocks; first += kLanes) {
      F parts[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        parts[i] = Simd::zero();
        const int b = first + i;
        if (b >= num_blocks) {
          continue;
        }
        if (v == 0) {
          for_lines_ahead(chunk, b, record_lines, prefetch_line);
        }
        for (int at = 0; at < query.head_dim; at += kLanes) {
          parts[i] = Simd::add(parts[i], term(chunk.records[b], at, Simd::load(q + at)));
        }
      }
      const int present = num_blocks - first;
      F sums = Ints::sum_each(parts);
      if (present < kLanes) {
        sums = Simd::keep_lanes(sums, 0, present > 0 ? present : 0, kMaskedScore);
      }
      Simd::store(scores + first, sums);
      top = Simd::max(sums, top);
    }
    const float reference = Simd::reduce_max(top);
    float* masses = out.masses + static_cast<std::size_t>(v) * out.stride;
    F total = Simd::zero();
    for (int first = 0; first < chunk.num_blocks; first += kLanes) {
      F weights = exp2_nonpositive<Simd, false>(
          Simd::sub(Simd::load(scores + first), Simd::broadcast(reference)));
      const int present = num_blocks - first;
      if (present < kLanes) {
        weights = Simd::keep_lanes(weights, 0, present > 0 ? present : 0, 0.0F);
      }
      Simd::store(masses + first, weights);
      total = Simd::add(total, weights);
    }
    const std::size_t at = static_cast<std::size_t>(v) * out.reference_stride;
    out.references[at] = reference;
    out.sums[at] = Simd::reduce_add(total);
  }
}

template <class Simd, class Ints>
void scan_min_max(const IndexQuery& query, const IndexChunk& chunk, float* scores,
                  const ChunkMasses& out) {
  const int dim = query.head_dim;
  scan_summaries<Simd, Ints>(
      query, chunk, scores, out, dim / kLanes, [dim](const std::byte* record, int at, auto q) {
        const auto least = Ints::widen_bf16(record + std::ptrdiff_t{2} * at);
        const auto largest = Ints::widen_bf16(record + std::ptrdiff_t{2} * (dim + at));
        return Simd::max(Simd::mul(q, least), Simd::mul(q, largest));
      });
}

template <class Simd, class Ints>
void scan_mean(const IndexQuery& query, const IndexChunk& chunk, float* scores,
               const ChunkMasses& out) {
  scan_summaries<Simd, Ints>(query, chunk, scores, out, (query.head_dim / kLanes + 1) / 2,
                             [](const std::byte* record, int at, auto q) {
                               const auto mean = Ints::widen_bf16(record + std::ptrdiff_t{2} * at);
                               return Simd::mul(q, mean);
                             });
}

template <class Simd, class Ints>
constexpr IndexKernels index_kernels() {
  return {scan_codes<Simd, Ints, 2>, scan_codes<Simd, Ints, 3>, scan_min_max<Simd, Ints>,
          scan_mean<Simd, Ints>};
}

}  // namespace
}  // namespace karez
