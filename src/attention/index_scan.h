// The scan of key codes (r2, r3), written once over a vector wrapper `Simd` (simd_*.h) and its
// integer half `Ints` (index_kernels_*.cpp).
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

// Lines of codes of so many groups of 16 coordinates; the scales follow them.
template <int bits>
constexpr int code_lines(int num_groups) {
  return bits == 3 ? num_groups + (num_groups + 1) / 2 : num_groups;
}

// Records of codes are used at once, and small.
inline void prefetch_code_line(const std::byte* p) { __builtin_prefetch(p, 0, 3); }

template <class Body>
inline void for_lines_ahead(const IndexChunk& chunk, int b, int num_lines, const Body& body) {
  const int ahead = b + kScanAhead < chunk.num_records ? b + kScanAhead : chunk.num_records - 1;
  for (int line = 0; line < num_lines; ++line) {
    body(chunk.records[ahead] + static_cast<std::size_t>(line) * kCodeLineBytes);
  }
}

// sums[r][b]: dot products of R vectors with the codes of B blocks. Codes are expanded once for all
// vectors, numbers of the query read once for all blocks.
template <class Ints, int bits, int R, int B>
inline void block_dots(const std::int8_t* codes, int head_dim, const std::byte* const* records,
                       typename Ints::Sum (&sums)[std::size_t{R}][std::size_t{B}]) {
  const int num_groups = head_dim / kLanes;
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) {
      sums[r][b] = Ints::clear();
    }
  }
  for (int g = 0; g < num_groups; ++g) {
    typename Ints::Words low[std::size_t{B}];
    typename Ints::Words high[std::size_t{B}];
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) {
      low[b] = Ints::load(records[b] + static_cast<std::size_t>(g) * kCodeLineBytes);
      if constexpr (bits == 3) {
        high[b] =
            Ints::load(records[b] + static_cast<std::size_t>(num_groups + g / 2) * kCodeLineBytes);
        if (g % 2 == 1) {
          high[b] = Ints::template shift_right<4>(high[b]);
        }
      }
    }
    const auto step = [&]<int s>() {
      typename Ints::Words fields[std::size_t{B}];
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b) {
        fields[b] = Ints::template field<2 * s>(low[b]);
        if constexpr (bits == 3) {
          fields[b] = Ints::with_third_bit(fields[b], Ints::template shift_right<s>(high[b]));
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const auto four = Ints::four_of_query(codes + r * head_dim + g * kLanes + 4 * s);
#pragma GCC unroll 4
        for (int b = 0; b < B; ++b) {
          sums[r][b] = Ints::dot(sums[r][b], fields[b], four);
        }
      }
    };
    step.template operator()<0>();
    step.template operator()<1>();
    step.template operator()<2>();
    step.template operator()<3>();
  }
}

// Scores of whole blocks, scores[r][b * 16 + token], without the factors of the vectors: these are
// positive and wait until exponentials are taken.
template <class Simd, class Ints, int bits, int R>
class CodeScorer {
 public:
  using F = typename Simd::F;
  CodeScorer(const IndexQuery& query, int first_vector, float* scores)
      : codes_(query.codes + first_vector * query.head_dim),
        head_dim_(query.head_dim),
        num_lines_(code_lines<bits>(query.head_dim / kLanes)),
        scores_(scores) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      top_[r] = Simd::broadcast(kMaskedScore);
      offsets_[r] = Simd::broadcast(query.offsets[first_vector + r]);
    }
  }

  // Blocks [b, b + B); of the last one `visible` tokens count, the others get kMaskedScore.
  template <int B, bool is_cut>
  void score(const IndexChunk& chunk, int b, int visible) {
#pragma GCC unroll 4
    for (int i = 0; i < B; ++i) {
      for_lines_ahead(chunk, b + i, num_lines_ + 1, prefetch_code_line);
    }
    typename Ints::Sum sums[std::size_t{R}][std::size_t{B}];
    block_dots<Ints, bits, R, B>(codes_, head_dim_, chunk.records + b, sums);
#pragma GCC unroll 4
    for (int i = 0; i < B; ++i) {
      const F scales = Ints::widen_bf16(chunk.records[b + i] +
                                        static_cast<std::size_t>(num_lines_) * kCodeLineBytes);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        F score = Simd::mul(Simd::sub(Ints::to_float(sums[r][i]), offsets_[r]), scales);
        if constexpr (is_cut) {
          score = Simd::keep_lanes(score, 0, visible, kMaskedScore);
        }
        Simd::store(scores_ + r * kScanTokens + (b + i) * kLanes, score);
        top_[r] = Simd::max(score, top_[r]);
      }
    }
  }
  float top(int r) const { return Simd::reduce_max(top_[r]); }

 private:
  const std::int8_t* codes_;
  int head_dim_;
  int num_lines_;
  float* scores_;
  F top_[std::size_t{R}];
  F offsets_[std::size_t{R}];
};

// Block masses of one vector from the scores of a chunk; their sum.
template <class Simd, class Ints>
inline float block_masses(const IndexChunk& chunk, const float* scores, float factor,
                          float reference, float* masses) {
  using F = typename Simd::F;
  const F factors = Simd::broadcast(factor);
  const F references = Simd::broadcast(reference);
  const auto weights_of = [&](int b) {
    return Ints::exp2_of(Simd::fms(Simd::load(scores + b * kLanes), factors, references));
  };
  F total = Simd::zero();
  F weights[kLanes];
  const auto add_masses = [&](int first) {
    const F sums = Ints::sum_each(weights);
    Simd::store(masses + first, sums);
    total = Simd::add(total, sums);
  };
  const int whole = chunk.num_blocks - (chunk.last_tokens < kLanes ? 1 : 0);
  int first = 0;
  for (; first + kLanes <= whole; first += kLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      weights[i] = weights_of(first + i);
    }
    add_masses(first);
  }
  if (first < chunk.num_blocks) {
    for (int i = 0; i < kLanes; ++i) {
      const int b = first + i;
      weights[i] = b < chunk.num_blocks ? weights_of(b) : Simd::zero();
      if (b >= whole && b < chunk.num_blocks) {
        weights[i] = Simd::keep_lanes(weights[i], 0, chunk.last_tokens, 0.0F);
      }
    }
    add_masses(first);
  }
  return Simd::reduce_add(total);
}

// The masses of R vectors from the scores and their largest ones.
template <class Simd, class Ints, int R, class Scorer>
inline void masses_of_scores(const IndexQuery& query, const IndexChunk& chunk, int first_vector,
                             const Scorer& scorer, const float* scores, const ChunkMasses& out) {
  for (int r = 0; r < R; ++r) {
    const int v = first_vector + r;
    const float reference = scorer.top(r) * query.factors[v];
    const std::size_t at = static_cast<std::size_t>(v) * out.reference_stride;
    out.references[at] = reference;
    out.sums[at] =
        block_masses<Simd, Ints>(chunk, scores + r * kScanTokens, query.factors[v], reference,
                                 out.masses + static_cast<std::size_t>(v) * out.stride);
  }
}

template <class Simd, class Ints, int bits, int R>
inline void scan_vectors(const IndexQuery& query, const IndexChunk& chunk, int first_vector,
                         float* scores, const ChunkMasses& out) {
  CodeScorer<Simd, Ints, bits, R> scorer(query, first_vector, scores);
  const int whole = chunk.num_blocks - (chunk.last_tokens < kLanes ? 1 : 0);
  int b = 0;
  for (; b + Ints::kBlocks <= whole; b += Ints::kBlocks) {
    scorer.template score<Ints::kBlocks, false>(chunk, b, kLanes);
  }
  for (; b < whole; ++b) {
    scorer.template score<1, false>(chunk, b, kLanes);
  }
  if (b < chunk.num_blocks) {
    scorer.template score<1, true>(chunk, b, chunk.last_tokens);
  }
  masses_of_scores<Simd, Ints, R>(query, chunk, first_vector, scorer, scores, out);
}

template <class Simd, class Ints, int bits>
void scan_codes(const IndexQuery& query, const IndexChunk& chunk, float* scores,
                const ChunkMasses& out) {
  for_row_groups<kScanVectors>(query.num_vectors, [&]<int R>(int first_vector) {
    scan_vectors<Simd, Ints, bits, R>(query, chunk, first_vector, scores, out);
  });
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
