#include "compress/token2chunk.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <functional>
#include <queue>

#include "base/check.h"

namespace karez {
namespace {

// Orders as the rule says when compared as an integer: score above, what is left of the lower index
// below.
using Rank = std::uint64_t;

Rank rank_of(float score, std::size_t index) {
  std::uint32_t high = 0;  // of NaN
  if (!std::isnan(score)) {
    const auto bits = std::bit_cast<std::uint32_t>(score + 0.0F);  // -0 becomes 0
    high = (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
  }
  return Rank{high} << 32 | static_cast<std::uint32_t>(~index);
}

std::size_t index_of(Rank rank) { return ~static_cast<std::uint32_t>(rank); }

// The best `count` come first, in any order.
std::vector<Rank> ranks_of(std::span<const float> scores, std::size_t count) {
  std::vector<Rank> ranks(scores.size());
  for (std::size_t i = 0; i < scores.size(); ++i) {
    ranks[i] = rank_of(scores[i], i);
  }
  std::ranges::nth_element(ranks, ranks.begin() + static_cast<std::ptrdiff_t>(count),
                           std::greater<>());
  return ranks;
}

// Flags of what is kept.
using Kept = std::vector<std::uint8_t>;

Kept best_tokens(std::span<const float> scores, std::size_t count) {
  Kept kept(scores.size(), 0);
  const std::vector<Rank> ranks = ranks_of(scores, count);
  for (std::size_t i = 0; i < count; ++i) {
    kept[index_of(ranks[i])] = 1;
  }
  return kept;
}

Kept grown_tokens(std::span<const float> scores, std::size_t count) {
  std::size_t num_kept = count - count / 2;
  Kept kept = best_tokens(scores, num_kept);
  std::priority_queue<Rank> neighbours;
  Kept is_queued = kept;
  const auto queue_beside = [&](std::size_t i) {
    for (const std::size_t beside : {i - 1, i + 1}) {
      if (beside < scores.size() && is_queued[beside] == 0) {
        is_queued[beside] = 1;
        neighbours.push(rank_of(scores[beside], beside));
      }
    }
  };
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (kept[i] != 0) {
      queue_beside(i);
    }
  }
  for (; num_kept < count; ++num_kept) {
    const std::size_t best = index_of(neighbours.top());
    neighbours.pop();
    kept[best] = 1;
    queue_beside(best);
  }
  return kept;
}

Kept best_runs(std::span<const float> scores, std::size_t count, std::size_t run) {
  std::vector<float> means;
  for (std::size_t begin = 0; begin < scores.size(); begin += run) {
    const std::size_t size = std::min(run, scores.size() - begin);
    double sum = 0;
    for (const float score : scores.subspan(begin, size)) {
      sum += score;
    }
    means.push_back(static_cast<float>(sum / static_cast<double>(size)));
  }
  std::vector<Rank> ranks;
  for (std::size_t i = 0; i < means.size(); ++i) {
    ranks.push_back(rank_of(means[i], i));
  }
  std::ranges::sort(ranks, std::greater<>());
  Kept kept(scores.size(), 0);
  std::size_t left = count;
  for (const Rank rank : ranks) {
    const std::size_t begin = index_of(rank) * run;
    const std::size_t size = std::min({run, scores.size() - begin, left});
    std::fill_n(kept.begin() + static_cast<std::ptrdiff_t>(begin), size, std::uint8_t{1});
    left -= size;
  }
  return kept;
}

Kept kept_of(CompressChunk chunk, std::size_t fixed_tokens, std::span<const float> scores,
             std::size_t count) {
  switch (chunk) {
    case CompressChunk::kToken2Chunk:
      return grown_tokens(scores, count);
    case CompressChunk::kFixed:
      return best_runs(scores, count, fixed_tokens);
    case CompressChunk::kNone:
      break;
  }
  return best_tokens(scores, count);
}

}  // namespace

std::vector<std::int32_t> choose_kept(CompressChunk chunk, int fixed_tokens,
                                      std::span<const float> scores, int count) {
  KAREZ_CHECK(count >= 0 && static_cast<std::size_t>(count) <= scores.size(), "count of scores");
  KAREZ_CHECK(chunk != CompressChunk::kFixed || fixed_tokens >= 1, "runs of tokens");
  const Kept kept = kept_of(chunk, static_cast<std::size_t>(fixed_tokens), scores,
                            static_cast<std::size_t>(count));
  std::vector<std::int32_t> out;
  out.reserve(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (kept[i] != 0) {
      out.push_back(static_cast<std::int32_t>(i));
    }
  }
  return out;
}

}  // namespace karez
