#include "compress/token2chunk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <set>

namespace karez {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using Indices = std::vector<std::int32_t>;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Indices token2chunk(const std::vector<float>& scores, int count) {
  return choose_kept(CompressChunk::kToken2Chunk, 0, scores, count);
}
Indices top(const std::vector<float>& scores, int count) {
  return choose_kept(CompressChunk::kNone, 0, scores, count);
}
Indices runs(int fixed, const std::vector<float>& scores, int count) {
  return choose_kept(CompressChunk::kFixed, fixed, scores, count);
}

Indices range(int begin, int end) {
  Indices out(static_cast<std::size_t>(end - begin));
  std::iota(out.begin(), out.end(), begin);
  return out;
}

std::vector<float> flat(int count) {
  return std::vector<float>(static_cast<std::size_t>(count), 0.5F);
}

std::vector<float> peaks(int count, std::initializer_list<std::size_t> where) {
  std::vector<float> scores = flat(count);
  for (const std::size_t i : where) {
    scores[i] = 1.0F;
  }
  return scores;
}

TEST(Token2Chunk, OfEqualScoresTheFirstAreKept) {
  for (const int count : {1, 2, 16, 31, 32}) {
    EXPECT_EQ(token2chunk(flat(32), count), range(0, count));
    EXPECT_EQ(top(flat(32), count), range(0, count));
    EXPECT_EQ(runs(8, flat(32), count), range(0, count));
  }
}

TEST(Token2Chunk, OneSeedGrowsInBothDirections) {
  std::vector<float> scores(32, 0.0F);
  scores[20] = 9;
  scores[3] = 8;  // the second best, and not beside the best
  scores[19] = 2;
  scores[18] = 1;
  scores[21] = 1.5F;
  EXPECT_THAT(token2chunk(scores, 2), ElementsAre(19, 20));
  EXPECT_THAT(token2chunk(scores, 3), ElementsAre(3, 19, 20));
  EXPECT_THAT(token2chunk(scores, 4), ElementsAre(3, 19, 20, 21));
  EXPECT_THAT(token2chunk(scores, 5), ElementsAre(3, 18, 19, 20, 21));
  EXPECT_THAT(top(scores, 2), ElementsAre(3, 20));
}

TEST(Token2Chunk, APeakBehindAValleyIsReachedThroughIt) {
  //                             seed         valley
  const std::vector<float> scores = {5, 0.1F, 0.9F, 4, 0.2F, 0.3F};
  EXPECT_THAT(token2chunk(scores, 4), ElementsAre(0, 2, 3, 4));
}

TEST(Token2Chunk, PeaksAtBothEndsGrowInwards) {
  const std::vector<float> scores = peaks(32, {0, 31});
  EXPECT_THAT(token2chunk(scores, 4), ElementsAre(0, 1, 2, 31));  // ties: the lower index
  std::vector<float> right_is_better = scores;
  right_is_better[30] = 0.7F;
  right_is_better[29] = 0.6F;
  EXPECT_THAT(token2chunk(right_is_better, 4), ElementsAre(0, 29, 30, 31));
}

TEST(Token2Chunk, KeepsExactlyAsManyAsAsked) {
  for (const int window : {1, 16, 32, 48, 1024}) {
    std::mt19937 random(static_cast<unsigned>(window));
    std::vector<float> scores(static_cast<std::size_t>(window));
    std::ranges::generate(scores, [&] { return static_cast<float>(random() % 7); });
    for (const int count : {0, 1, 15, 16, 17, window - 16, window - 1, window}) {
      if (count < 0 || count > window) {
        continue;
      }
      for (const CompressChunk chunk :
           {CompressChunk::kToken2Chunk, CompressChunk::kNone, CompressChunk::kFixed}) {
        const Indices kept = choose_kept(chunk, 7, scores, count);
        EXPECT_EQ(kept.size(), static_cast<std::size_t>(count));
        EXPECT_EQ(std::set<std::int32_t>(kept.begin(), kept.end()).size(), kept.size());
        EXPECT_TRUE(std::ranges::is_sorted(kept));
        EXPECT_TRUE(kept.empty() || (kept.front() >= 0 && kept.back() < window));
      }
    }
  }
  EXPECT_THAT(token2chunk({}, 0), IsEmpty());
}

TEST(Token2Chunk, FixedRunsGoByTheirMeanAndTheLastOneIsCut) {
  const std::vector<float> scores = {0, 0, 9, 0, 0, 0, 4, 4, 4, 1, 1, 1};  // means 3, 0, 4, 1
  EXPECT_THAT(runs(3, scores, 3), ElementsAre(6, 7, 8));
  EXPECT_THAT(runs(3, scores, 5), ElementsAre(0, 1, 6, 7, 8));
  EXPECT_THAT(runs(3, scores, 8), ElementsAre(0, 1, 2, 6, 7, 8, 9, 10));
}

TEST(Token2Chunk, AShorterLastRunCountsByItsOwnMean) {
  const std::vector<float> scores = {1, 1, 1, 2, 2, 2, 3};
  EXPECT_THAT(runs(3, scores, 1), ElementsAre(6));
  EXPECT_THAT(runs(3, scores, 3), ElementsAre(3, 4, 6));
  EXPECT_THAT(runs(100, scores, 2), ElementsAre(0, 1));
}

TEST(Token2Chunk, NaNLosesAgainstEverything) {
  const std::vector<float> scores = {kNaN, -kInfinity, kNaN, 0, -1, kInfinity};
  EXPECT_THAT(top(scores, 1), ElementsAre(5));
  EXPECT_THAT(top(scores, 4), ElementsAre(1, 3, 4, 5));
  EXPECT_THAT(top(scores, 5), ElementsAre(0, 1, 3, 4, 5));
  EXPECT_THAT(token2chunk({kNaN, 1, kNaN, 0}, 2), ElementsAre(0, 1));
  EXPECT_THAT(token2chunk({0, 2, kNaN, 1}, 4), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(runs(2, {9, kNaN, 1, 1}, 2), ElementsAre(2, 3));
  EXPECT_EQ(top(std::vector<float>(32, kNaN), 16), range(0, 16));
}

TEST(Token2Chunk, ZeroHasNoSign) {
  EXPECT_THAT(top({-0.0F, 0.0F, -0.0F}, 2), ElementsAre(0, 1));
  EXPECT_THAT(top({-1.0F, -2.0F, -0.5F}, 2), ElementsAre(0, 2));
}

// The best that may be taken, by looking at all.
template <class MayTake>
std::optional<std::size_t> best_of(const std::vector<float>& scores, const MayTake& may_take) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const bool is_better =
        !best || scores[i] > scores[*best] || (std::isnan(scores[*best]) && !std::isnan(scores[i]));
    if (may_take(i) && is_better) {
      best = i;
    }
  }
  return best;
}

Indices naive(const std::vector<float>& scores, int count) {
  std::set<std::size_t> kept;
  const int seeds = (count + 1) / 2;
  const auto is_free = [&](std::size_t i) { return !kept.contains(i); };
  const auto is_beside = [&](std::size_t i) {
    return is_free(i) && (kept.contains(i + 1) || (i > 0 && kept.contains(i - 1)));
  };
  for (int i = 0; i < count; ++i) {
    kept.insert(i < seeds ? best_of(scores, is_free).value() : best_of(scores, is_beside).value());
  }
  return {kept.begin(), kept.end()};
}

TEST(Token2Chunk, EqualsItsDefinitionOnRandomScores) {
  std::mt19937 random(5);
  for (int round = 0; round < 400; ++round) {
    const std::size_t window = 16 * (1 + random() % 8);
    const unsigned distinct = round % 2 == 0 ? 5 : 1U << 20;  // many ties, or hardly any
    std::vector<float> scores(window);
    std::ranges::generate(scores, [&] {
      return random() % 50 == 0 ? kNaN : static_cast<float>(random() % distinct) - 2.0F;
    });
    const int count = static_cast<int>(random() % (window + 1));
    ASSERT_EQ(token2chunk(scores, count), naive(scores, count)) << window << ", " << count;
  }
}

}  // namespace
}  // namespace karez
