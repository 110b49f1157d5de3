// Scores against a softmax in double precision over the keys as they are stored.
#include "compress/window_score.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "attention/block_store.h"
#include "base/bf16.h"
#include "kv/block_layout.h"

namespace karez {
namespace window_score_test {

using testing::Each;
using testing::ElementsAreArray;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int kFirstPosition = 48;

std::size_t size_of(int value) { return static_cast<std::size_t>(value); }

// Blocks of stored keys, made from rows that a test may change before it asks for views.
class Blocks {
 public:
  Blocks(KvType type, int head_dim, int num_tokens, unsigned seed)
      : type_(type), head_dim_(head_dim), rows_(size_of(num_tokens * head_dim)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::ranges::generate(rows_, [&] { return normal(random); });
  }
  float* row(int token) { return rows_.data() + token * head_dim_; }
  int num_tokens() const { return static_cast<int>(rows_.size()) / head_dim_; }

  std::vector<const std::byte*> store() {
    const std::size_t slot_bytes = BlockLayout::of(type_, head_dim_).slot_bytes;
    const int blocks = num_tokens() / kBlockSize;
    memory_.assign(size_of(blocks) * slot_bytes, std::byte{0x7f});
    std::vector<const std::byte*> slots;
    for (int b = 0; b < blocks; ++b) {
      std::byte* slot = memory_.data() + size_of(b) * slot_bytes;
      const float* rows = row(b * kBlockSize);
      store_in_block(type_, head_dim_, slot, 0, kBlockSize, {rows, size_of(head_dim_)},
                     {rows, size_of(head_dim_)});
      slots.push_back(slot);
    }
    return slots;
  }

 private:
  KvType type_;
  int head_dim_;
  std::vector<float> rows_;
  std::vector<std::byte> memory_;
};

struct Setting {
  KvType type = KvType::kBf16;
  int head_dim = 32;
  int window_tokens = 64;
  int num_sinks = kBlockSize;
  int num_queries = 30;
  float softcap = 0.0F;
  CpuLevel level = CpuLevel::kPortable;
};

class Scene {
 public:
  explicit Scene(const Setting& setting)
      : setting_(setting),
        window(setting.type, setting.head_dim, setting.window_tokens, 1),
        sinks(setting.type, setting.head_dim, setting.num_sinks, 2),
        queries_(size_of(setting.num_queries * setting.head_dim)) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::ranges::generate(queries_, [&] { return to_bf16(normal(random)); });
    for (int i = 0; i < setting.num_queries; ++i) {
      positions.push_back(kFirstPosition + 3 * i);
    }
  }
  std::uint16_t* query(int i) { return queries_.data() + i * setting_.head_dim; }

  std::vector<float> scores(CompressScore kind, std::uint64_t seed = 0) {
    const std::vector<const std::byte*> window_slots = window.store();
    const std::vector<const std::byte*> sink_slots = sinks.store();
    std::vector<const std::uint16_t*> rows;
    for (int i = 0; i < setting_.num_queries; ++i) {
      rows.push_back(query(i));
    }
    WindowKeys keys;
    keys.type = setting_.type;
    keys.head_dim = setting_.head_dim;
    keys.window = window_slots;
    keys.sinks = sink_slots;
    keys.first_position = kFirstPosition;
    keys.scale = scale;
    keys.softcap = setting_.softcap;
    std::vector<float> out(size_of(setting_.window_tokens), kNaN);
    scorer.score(kind, keys, {rows, positions}, seed, out);
    return out;
  }

  // What scores() should be, from all that is finite.
  std::vector<double> expected(CompressScore kind) {
    std::vector<double> sums(size_of(setting_.window_tokens));
    int counted = 0;
    const bool with_sinks = kind != CompressScore::kLastQueries;
    const int first = kind == CompressScore::kLastQueries
                          ? std::max(0, setting_.num_queries - WindowScorer::kLastQueries)
                          : 0;
    const std::vector<double> window_keys = stored(window);
    const std::vector<double> sink_keys = stored(sinks);
    for (int i = first; i < setting_.num_queries; ++i) {
      std::vector<double> weights(size_of(setting_.window_tokens));
      double total = 0;
      for (int t = 0; t < setting_.window_tokens; ++t) {
        const bool is_seen =
            kind == CompressScore::kBidirectional || kFirstPosition + t <= positions[size_of(i)];
        weights[size_of(t)] = is_seen ? weight(i, window_keys.data() + t * setting_.head_dim) : 0;
        total += weights[size_of(t)];
      }
      for (int t = 0; with_sinks && t < setting_.num_sinks; ++t) {
        total += weight(i, sink_keys.data() + t * setting_.head_dim);
      }
      if (!std::isfinite(total) || total == 0) {
        continue;
      }
      ++counted;
      for (std::size_t t = 0; t < sums.size(); ++t) {
        sums[t] += weights[t] / total;
      }
    }
    for (double& sum : sums) {
      sum /= std::max(counted, 1);
    }
    return sums;
  }

 private:
  Setting setting_;

 public:
  Blocks window;
  Blocks sinks;
  std::vector<std::int32_t> positions;
  float scale = 0.3F;
  WindowScorer scorer{setting_.level};

 private:
  std::vector<double> stored(Blocks& blocks) const {
    std::vector<double> out;
    std::vector<float> block(size_of(kBlockSize * setting_.head_dim));
    for (const std::byte* slot : blocks.store()) {
      load_block_keys(setting_.type, setting_.head_dim, slot, block.data());
      out.insert(out.end(), block.begin(), block.end());
    }
    return out;
  }
  // 0 for a key that is not finite; NaN for such a query.
  double weight(int i, const double* key) {
    double product = 0;
    for (int j = 0; j < setting_.head_dim; ++j) {
      if (!std::isfinite(key[j])) {
        return 0;
      }
      product += key[j] * static_cast<double>(from_bf16(query(i)[j]));
    }
    product *= static_cast<double>(scale);
    const double cap = static_cast<double>(setting_.softcap);
    return std::exp(cap > 0 ? cap * std::tanh(product / cap) : product);
  }

  std::vector<std::uint16_t> queries_;
};

void expect_as_expected(Scene& scene, CompressScore kind) {
  const std::vector<float> scores = scene.scores(kind);
  const std::vector<double> expected = scene.expected(kind);
  ASSERT_EQ(scores.size(), expected.size());
  for (std::size_t t = 0; t < scores.size(); ++t) {
    EXPECT_NEAR(static_cast<double>(scores[t]), expected[t], 1e-6 + expected[t] * 1e-4)
        << "token " << t;
  }
}

constexpr CompressScore kByAttention[] = {CompressScore::kBidirectional, CompressScore::kCausal,
                                          CompressScore::kLastQueries};

class WindowScore : public testing::TestWithParam<CpuLevel> {};

INSTANTIATE_TEST_SUITE_P(Levels, WindowScore, testing::ValuesIn(supported_cpu_levels()),
                         [](const testing::TestParamInfo<CpuLevel>& level) {
                           std::string name(to_string(level.param));
                           std::erase_if(name, [](char c) { return std::isalnum(c) == 0; });
                           return name;
                         });

TEST_P(WindowScore, IsTheMeanSoftmaxForEveryTypeAndSize) {
  for (const KvType type : {KvType::kF32, KvType::kBf16, KvType::kQ8_0}) {
    for (const int window_tokens : {16, 80, 272}) {
      for (const int head_dim : {32, 80}) {
        for (const CompressScore kind : kByAttention) {
          Scene scene({type, head_dim, window_tokens, kBlockSize, 31, 0.0F, GetParam()});
          SCOPED_TRACE(testing::Message() << to_string(type) << ", " << window_tokens << " x "
                                          << head_dim << ", " << to_string(kind));
          expect_as_expected(scene, kind);
        }
      }
    }
  }
}

TEST_P(WindowScore, CountsEveryQueryOfEveryTileSize) {
  for (int num_queries = 1; num_queries <= 2 * kScoreTileQueries + 1; ++num_queries) {
    Scene scene({KvType::kBf16, 32, 32, kBlockSize, num_queries, 0.0F, GetParam()});
    SCOPED_TRACE(num_queries);
    expect_as_expected(scene, CompressScore::kCausal);
  }
}

TEST_P(WindowScore, CapsScoresAsAttentionDoes) {
  for (const CompressScore kind : kByAttention) {
    Scene scene({KvType::kBf16, 64, 64, kBlockSize, 30, 2.0F, GetParam()});
    scene.scale = 1.0F;
    SCOPED_TRACE(to_string(kind));
    expect_as_expected(scene, kind);
  }
}

TEST_P(WindowScore, WithoutSinksQueriesShareAllTheirAttentionAmongTheWindow) {
  Scene scene({KvType::kBf16, 32, 64, 0, 30, 0.0F, GetParam()});
  double sum = 0;
  for (const float score : scene.scores(CompressScore::kBidirectional)) {
    sum += static_cast<double>(score);
  }
  EXPECT_NEAR(sum, 1.0, 1e-5);
}

TEST_P(WindowScore, ExtremeLogitsAreNoInfinities) {
  for (const float scale : {300.0F, 1e-30F}) {
    Scene scene({KvType::kF32, 32, 64, kBlockSize, 30, 0.0F, GetParam()});
    scene.scale = scale;
    SCOPED_TRACE(scale);
    float sum = 0;
    for (const float score : scene.scores(CompressScore::kBidirectional)) {
      ASSERT_GE(score, 0.0F);
      sum += score;
    }
    EXPECT_GT(sum, 0.0F);
    EXPECT_LE(sum, 1.0001F);
  }
}

TEST_P(WindowScore, QueriesThatAreNotFiniteCountNothing) {
  for (const float bad : {kNaN, kInfinity, -kInfinity}) {
    for (const CompressScore kind : kByAttention) {
      Scene scene({KvType::kBf16, 32, 64, kBlockSize, 30, 0.0F, GetParam()});
      const std::vector<float> before = scene.scores(kind);
      scene.query(29)[7] = to_bf16(bad);
      scene.query(3)[0] = to_bf16(bad);
      SCOPED_TRACE(testing::Message() << bad << ", " << to_string(kind));
      EXPECT_NE(scene.scores(kind), before);
      expect_as_expected(scene, kind);
    }
  }
}

TEST_P(WindowScore, QueriesWhoseProductsOverflowCountNothing) {
  Scene scene({KvType::kF32, 32, 64, kBlockSize, 30, 0.0F, GetParam()});
  scene.window.row(5)[0] = 1e30F;
  scene.query(4)[0] = to_bf16(1e30F);
  const std::vector<float> scores = scene.scores(CompressScore::kBidirectional);
  EXPECT_THAT(scores, Each(testing::AllOf(testing::Ge(0.0F), testing::Le(1.0F))));
  // The other queries see token 5 where the sign is right, and nothing else then.
  EXPECT_GT(scores[5], 0.0F);
}

TEST_P(WindowScore, KeysThatAreNotFiniteGetNothingAndTakeNothing) {
  for (const KvType type : {KvType::kF32, KvType::kBf16}) {
    for (const float bad : {kNaN, kInfinity, -kInfinity}) {
      for (const CompressScore kind : kByAttention) {
        Scene scene({type, 32, 64, kBlockSize, 30, 0.0F, GetParam()});
        scene.window.row(0)[3] = bad;
        scene.window.row(37)[0] = bad;
        scene.sinks.row(2)[31] = bad;
        SCOPED_TRACE(testing::Message() << bad << ", " << to_string(kind));
        expect_as_expected(scene, kind);
        EXPECT_EQ(scene.scores(kind)[0], 0.0F);
        EXPECT_EQ(scene.scores(kind)[37], 0.0F);
      }
    }
  }
}

TEST_P(WindowScore, IsZeroWhereNothingCounts) {
  Scene no_queries({KvType::kBf16, 32, 32, kBlockSize, 0, 0.0F, GetParam()});
  EXPECT_THAT(no_queries.scores(CompressScore::kBidirectional), Each(0.0F));

  Scene bad_keys({KvType::kF32, 32, 32, kBlockSize, 8, 0.0F, GetParam()});
  for (int t = 0; t < 32; ++t) {
    bad_keys.window.row(t)[0] = kNaN;
  }
  for (const CompressScore kind : kByAttention) {
    EXPECT_THAT(bad_keys.scores(kind), Each(0.0F)) << to_string(kind);
  }

  Scene too_early({KvType::kBf16, 32, 32, kBlockSize, 8, 0.0F, GetParam()});
  std::ranges::fill(too_early.positions, kFirstPosition - 1);
  EXPECT_THAT(too_early.scores(CompressScore::kCausal), Each(0.0F));
}

TEST_P(WindowScore, ACausalQuerySeesNothingBehindIt) {
  Scene scene({KvType::kBf16, 32, 64, kBlockSize, 1, 0.0F, GetParam()});
  for (const int seen : {1, 15, 16, 17, 63}) {
    scene.positions = {kFirstPosition + seen - 1};
    const std::vector<float> scores = scene.scores(CompressScore::kCausal);
    for (int t = 0; t < 64; ++t) {
      EXPECT_EQ(scores[size_of(t)] > 0.0F, t < seen) << t << " of " << seen;
    }
  }
}

TEST_P(WindowScore, ATokenThatAllQueriesPointAtIsFirst) {
  Scene scene({KvType::kQ8_0, 32, 64, kBlockSize, 30, 0.0F, GetParam()});
  for (int i = 0; i < 30; ++i) {
    scene.query(i)[0] = to_bf16(6.0F);
  }
  scene.window.row(41)[0] = 6.0F;
  for (const CompressScore kind : kByAttention) {
    const std::vector<float> scores = scene.scores(kind);
    EXPECT_EQ(std::ranges::max_element(scores) - scores.begin(), 41) << to_string(kind);
  }
}

TEST(WindowScoreKinds, LastQueriesReadsTheLatestSixteenOnly) {
  Scene scene({});
  const std::vector<float> before = scene.scores(CompressScore::kLastQueries);
  for (int i = 0; i < 30 - WindowScorer::kLastQueries; ++i) {
    scene.query(i)[0] = to_bf16(50.0F);
  }
  EXPECT_EQ(scene.scores(CompressScore::kLastQueries), before);
  scene.query(30 - WindowScorer::kLastQueries)[0] = to_bf16(50.0F);
  EXPECT_NE(scene.scores(CompressScore::kLastQueries), before);
}

TEST(WindowScoreKinds, RecentAscendsWithThePosition) {
  Scene scene({});
  const std::vector<float> scores = scene.scores(CompressScore::kRecent);
  EXPECT_TRUE(std::ranges::is_sorted(scores, std::less_equal<>()) && scores.size() == 64);
  EXPECT_LT(scores.front(), scores.back());
}

TEST(WindowScoreKinds, RandomIsAFunctionOfSeedAndPosition) {
  Scene scene({});
  const std::vector<float> scores = scene.scores(CompressScore::kRandom, 7);
  EXPECT_THAT(scores, Each(testing::AllOf(testing::Ge(0.0F), testing::Lt(1.0F))));
  EXPECT_EQ(scene.scores(CompressScore::kRandom, 7), scores);
  EXPECT_NE(scene.scores(CompressScore::kRandom, 8), scores);
  Scene longer({KvType::kBf16, 32, 128});
  std::vector<float> beginning = longer.scores(CompressScore::kRandom, 7);
  beginning.resize(64);
  EXPECT_THAT(beginning, ElementsAreArray(scores));
  std::ranges::sort(beginning);
  EXPECT_GT(std::ranges::unique(beginning).begin() - beginning.begin(), 60);
}

}  // namespace window_score_test
}  // namespace karez
