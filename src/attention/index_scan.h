// The scan of the key index, written once over a vector wrapper `Simd` (simd_*.h) and its integer
// half `Ints` (index_kernels_*.cpp).
//
// Included by one index_kernels_*.cpp each, with the rules of chunk_kernels.h: unnamed namespace,
// no library functions, because each includer is compiled for another processor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/index_kernels.h"
#include "attention/kernel_common.h"

namespace karez {
namespace {

constexpr int kScanTokens = kScanBlocks * kLanes;
constexpr std::size_t kCodeLineBytes = 64;

template <class Body>
inline void for_lines_ahead(const IndexChunk& chunk, int b, int num_lines, const Body& body) {
  const int ahead = b + kScanAhead < chunk.num_records ? b + kScanAhead : chunk.num_records - 1;
  for (int line = 0; line < num_lines; ++line) {
    body(chunk.records[ahead] + static_cast<std::size_t>(line) * kCodeLineBytes);
  }
}

// Scores of R vectors for one block, codes expanded once for all of them.
template <class Simd, class Ints, int bits, int R>
inline void block_dots(const IndexQuery& query, int first_vector, const std::byte* record,
                       typename Ints::Sum (&sums)[std::size_t{R}]) {
  const int num_groups = query.head_dim / kLanes;
  const std::byte* high_bits = record + static_cast<std::size_t>(num_groups) * kCodeLineBytes;
  const std::int8_t* codes = query.codes + first_vector * query.head_dim;
  for (int g = 0; g < num_groups; ++g) {
    const auto low = Ints::load(record + static_cast<std::size_t>(g) * kCodeLineBytes);
    auto high = low;
    if constexpr (bits == 3) {
      high = Ints::load(high_bits + static_cast<std::size_t>(g / 2) * kCodeLineBytes);
      if (g % 2 == 1) {
        high = Ints::template shift_right<4>(high);
      }
    }
    const auto step = [&]<int s>() {
      auto fields = Ints::low_bits(Ints::template shift_right<2 * s>(low));
      if constexpr (bits == 3) {
        fields = Ints::with_third_bit(fields, Ints::template shift_right<s>(high));
      }
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        sums[r] = Ints::dot(sums[r], fields, codes + r * query.head_dim + g * kLanes + 4 * s);
      }
    };
    step.template operator()<0>();
    step.template operator()<1>();
    step.template operator()<2>();
    step.template operator()<3>();
  }
}

// scores[v][block * 16 + token]; the masses of whole chunks from them.
template <class Simd, class Ints, int bits, int R>
inline void scan_vectors(const IndexQuery& query, const IndexChunk& chunk, int first_vector,
                         float* scores, const ChunkMasses& out) {
  using F = typename Simd::F;
  const int num_groups = query.head_dim / kLanes;
  const int code_lines = bits == 3 ? num_groups + (num_groups + 1) / 2 : num_groups;
  F top[std::size_t{R}];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    top[r] = Simd::broadcast(kMaskedScore);
  }
  for (int b = 0; b < chunk.num_blocks; ++b) {
    for_lines_ahead(chunk, b, code_lines + 1, prefetch_line);
    const std::byte* record = chunk.records[b];
    typename Ints::Sum sums[std::size_t{R}];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      sums[r] = Ints::clear();
    }
    block_dots<Simd, Ints, bits, R>(query, first_vector, record, sums);
    const F scales =
        Ints::widen_bf16(record + static_cast<std::size_t>(code_lines) * kCodeLineBytes);
    const bool cut = b + 1 == chunk.num_blocks && chunk.last_tokens < kLanes;
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const int v = first_vector + r;
      const F level_sum = Simd::sub(Ints::to_float(sums[r]), Simd::broadcast(query.offsets[v]));
      F score = Simd::mul(level_sum, Simd::mul(scales, Simd::broadcast(query.factors[v])));
      if (cut) {
        score = Simd::keep_lanes(score, 0, chunk.last_tokens, kMaskedScore);
      }
      Simd::store(scores + r * kScanTokens + b * kLanes, score);
      top[r] = Simd::max(score, top[r]);
    }
  }
  for (int r = 0; r < R; ++r) {
    const int v = first_vector + r;
    const float reference = Simd::reduce_max(top[r]);
    const F reference_vector = Simd::broadcast(reference);
    const float* row = scores + r * kScanTokens;
    float* masses = out.masses + static_cast<std::size_t>(v) * out.stride;
    F total = Simd::zero();
    for (int first = 0; first < chunk.num_blocks; first += kLanes) {
      F weights[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        const int b = first + i;
        weights[i] = b < chunk.num_blocks ? exp2_nonpositive<Simd, false>(Simd::sub(
                                                Simd::load(row + b * kLanes), reference_vector))
                                          : Simd::zero();
      }
      const F sums = Ints::sum_each(weights);
      Simd::store(masses + first, sums);
      total = Simd::add(total, sums);
    }
    const std::size_t at = static_cast<std::size_t>(v) * out.reference_stride;
    out.references[at] = reference;
    out.sums[at] = Simd::reduce_add(total);
  }
}

template <class Simd, class Ints, int bits>
void scan_codes(const IndexQuery& query, const IndexChunk& chunk, float* scores,
                const ChunkMasses& out) {
  for_row_groups<kScanVectors>(query.num_vectors, [&]<int R>(int first_vector) {
    scan_vectors<Simd, Ints, bits, R>(query, chunk, first_vector, scores, out);
  });
}

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

// One vector from the lane sums of sixteen, for wrappers without a faster way.
template <class Simd>
inline typename Simd::F sum_each_by_one(const typename Simd::F* vectors) {
  float sums[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    sums[i] = Simd::reduce_add(vectors[i]);
  }
  return Simd::load(sums);
}

}  // namespace
}  // namespace karez
