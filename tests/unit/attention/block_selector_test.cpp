#include "attention/block_selector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "kv/kv_types.h"

namespace karez {
namespace {

using testing::ElementsAre;

// What run(scratch) gives with the kernels of all CPU levels, which must be the same.
template <class Run>
std::vector<std::int32_t> on_all_levels(const Run& run) {
  std::vector<std::int32_t> expected;
  for (const CpuLevel level : supported_cpu_levels()) {
    SelectorScratch scratch;
    scratch.kernels = &select_kernels(level);
    std::vector<std::int32_t> out = run(scratch);
    if (level == CpuLevel::kPortable) {
      expected = std::move(out);
    } else {
      EXPECT_EQ(out, expected) << to_string(level);
    }
  }
  return expected;
}

std::vector<std::int32_t> chosen(const std::vector<float>& scores, int k) {
  return on_all_levels([&](SelectorScratch& scratch) {
    // What lies behind the result must stay.
    std::vector<std::int32_t> out(static_cast<std::size_t>(k) + 16, -5);
    top_k(scores, k, std::span(out).first(static_cast<std::size_t>(k)), scratch);
    EXPECT_EQ(std::count(out.end() - 16, out.end(), -5), 16);
    out.resize(static_cast<std::size_t>(k));
    return out;
  });
}

// Masses of one head, all with reference 0.
struct Head {
  explicit Head(std::vector<float> block_masses)
      : masses(std::move(block_masses)),
        references{0.0F},
        sums{std::accumulate(masses.begin(), masses.end(), 0.0F)} {}
  HeadMasses view() const { return {masses, references, sums}; }
  std::vector<float> masses;
  std::vector<float> references;
  std::vector<float> sums;
};

// The same by a full sort.
std::vector<std::int32_t> sorted_choice(const std::vector<float>& scores, int k) {
  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&scores](std::int32_t a, std::int32_t b) {
    const float x = scores[static_cast<std::size_t>(a)];
    const float y = scores[static_cast<std::size_t>(b)];
    return std::isnan(y) ? !std::isnan(x) : x > y;
  });
  order.resize(static_cast<std::size_t>(k));
  std::sort(order.begin(), order.end());
  return order;
}

TEST(BlockSelector, TopKPrefersLowerPositionsAmongEquals) {
  EXPECT_THAT(chosen({1, 2, 2, 2, 0}, 2), ElementsAre(1, 2));
  EXPECT_THAT(chosen({3, 3, 3, 3}, 2), ElementsAre(0, 1));
  EXPECT_THAT(chosen({0.0F, -0.0F, -1.0F}, 1), ElementsAre(0));
  EXPECT_THAT(chosen({-0.0F, 0.0F, -1.0F}, 1), ElementsAre(0));
}

TEST(BlockSelector, TopKOfNothingAndOfEverything) {
  EXPECT_TRUE(chosen({1, 2, 3}, 0).empty());
  EXPECT_TRUE(chosen({}, 0).empty());
  EXPECT_THAT(chosen({1, NAN, 3}, 3), ElementsAre(0, 1, 2));
}

TEST(BlockSelector, NanLosesToMinusInfinity) {
  EXPECT_THAT(chosen({NAN, -INFINITY, NAN, INFINITY}, 2), ElementsAre(1, 3));
  EXPECT_THAT(chosen({NAN, NAN, NAN}, 2), ElementsAre(0, 1));
}

TEST(BlockSelector, TopKEqualsAFullSort) {
  std::mt19937 random(3);
  for (int round = 0; round < 600; ++round) {
    std::vector<float> scores(1 + random() % 700);
    const unsigned kind = random() % 5;
    for (float& x : scores) {
      const float unit = static_cast<float>(random() % 65536) / 65536.0F;
      switch (kind) {
        case 0:  // many ties
          x = static_cast<float>(random() % 4);
          break;
        case 1:  // one dominant cluster, told apart by the last bits only
          x = random() % 20 == 0 ? unit : 1.0F + static_cast<float>(random() % 64) * 1.2e-7F;
          break;
        case 2:  // all magnitudes and signs
          x = std::ldexp(unit - 0.5F, static_cast<int>(random() % 250) - 125);
          break;
        case 3:  // with what is no number
          x = random() % 3 == 0 ? std::numeric_limits<float>::quiet_NaN()
                                : (random() % 5 == 0 ? INFINITY : unit);
          break;
        default:
          x = unit;
      }
    }
    const int k = static_cast<int>(random() % (scores.size() + 1));
    ASSERT_EQ(chosen(scores, k), sorted_choice(scores, k)) << "kind " << kind << " k " << k;
  }
}

TEST(BlockSelector, LongListsOfScoresAreNoDifferent) {
  std::mt19937 random(5);
  std::vector<float> scores(70001);
  for (float& x : scores) {
    x = std::exp2(static_cast<float>(random() % 65536) / 1024.0F - 60.0F);
  }
  for (const int k : {1, 118, 4096, 70000}) {
    ASSERT_EQ(chosen(scores, k), sorted_choice(scores, k));
  }
}

// Random masses in chunks of 5 blocks, some of them no numbers: the levels agree to the bit.
TEST(BlockSelector, AllLevelsSelectTheSameBlocks) {
  std::mt19937 random(6);
  for (int round = 0; round < 100; ++round) {
    const int num_blocks = 20 + static_cast<int>(random() % 300);
    std::vector<Head> heads;
    for (int h = 0; h < 3; ++h) {
      std::vector<float> masses(static_cast<std::size_t>(num_blocks));
      for (float& x : masses) {
        x = random() % 50 == 0 ? 0.0F : std::exp2(static_cast<float>(random() % 3000) / -100.0F);
      }
      heads.emplace_back(masses);
      const auto num_chunks = static_cast<std::size_t>((num_blocks + 4) / 5);
      heads.back().references.assign(num_chunks, static_cast<float>(h));
      heads.back().sums.assign(num_chunks, 2.0F);
    }
    const SelectionShape shape{num_blocks, 1 + round % 3, num_blocks - 9,
                               1 + static_cast<int>(random() % 10)};
    std::vector<HeadMasses> views;
    for (const Head& head : heads) {
      views.push_back(head.view());
    }
    const auto list = on_all_levels([&](SelectorScratch& scratch) {
      std::vector<std::int32_t> out(static_cast<std::size_t>(shape.num_selected()));
      select_blocks(shape, views, 5, scratch, out);
      return out;
    });
    EXPECT_TRUE(std::is_sorted(list.begin(), list.end()));
  }
}

TEST(BlockSelector, ShapeCountsSinkAndRecentInTheBudget) {
  const SelectionRule rule{512, 128, 16};
  // Position 1000: blocks 0 to 62; the window begins at 873, in block 54.
  const SelectionShape shape = selection_shape(rule, 1000);
  EXPECT_EQ(shape.num_blocks, 63);
  EXPECT_EQ(shape.sink_blocks, 1);
  EXPECT_EQ(shape.recent_begin, 54);
  EXPECT_EQ(shape.num_selected(), 32);
  EXPECT_FALSE(shape.selects_all());
}

TEST(BlockSelector, AContextWithinTheBudgetIsSelectedWhole) {
  for (const int budget : {1, 16, 100, 512, 2048}) {
    const SelectionRule rule{budget, 128, 16};
    EXPECT_TRUE(selection_shape(rule, budget - 1).selects_all()) << budget;
  }
  EXPECT_FALSE(selection_shape({2048, 128, 16}, 2048).selects_all());
}

TEST(BlockSelector, SinkAndRecentAreKeptWhateverTheBudget) {
  const SelectionShape shape = selection_shape({16, 128, 40}, 5000);
  EXPECT_EQ(shape.sink_blocks, 3);
  EXPECT_EQ(shape.num_best, 0);
  EXPECT_EQ(shape.num_blocks - shape.recent_begin, 9);
  EXPECT_EQ(shape.num_selected(), 12);
}

TEST(BlockSelector, OnceSparseARowStaysSparseAsTheContextGrows) {
  for (const SelectionRule rule : {SelectionRule{512, 128, 16}, SelectionRule{16, 128, 16},
                                   SelectionRule{1, 1, 0}, SelectionRule{100, 300, 50}}) {
    bool sparse = false;
    for (int position = 0; position < 1500; ++position) {
      const SelectionShape shape = selection_shape(rule, position);
      EXPECT_FALSE(sparse && shape.selects_all()) << position;
      sparse = !shape.selects_all();
    }
  }
}

std::vector<std::int32_t> selected(const SelectionShape& shape, const std::vector<Head>& heads) {
  std::vector<HeadMasses> views;
  for (const Head& head : heads) {
    views.push_back(head.view());
  }
  return on_all_levels([&](SelectorScratch& scratch) {
    std::vector<std::int32_t> out(static_cast<std::size_t>(shape.num_selected()));
    select_blocks(shape, views, 64, scratch, out);
    return out;
  });
}

TEST(BlockSelector, ListsAreSinkBestAndRecentInAscendingOrder) {
  const SelectionShape shape{10, 1, 8, 2};
  EXPECT_THAT(selected(shape, {Head({9, 1, 5, 2, 7, 3, 1, 1, 0, 0})}), ElementsAre(0, 2, 4, 8, 9));
}

TEST(BlockSelector, HeadsCountBySharesOfTheirOwnMass) {
  // Block 1 has a share of 0.6 for the first head, block 2 one of 0.9 for the second, whose masses
  // are a thousand times smaller. Block 3 is second for both.
  const SelectionShape shape{5, 0, 5, 2};
  EXPECT_THAT(selected(shape, {Head({0, 600, 0, 400, 0}), Head({0, 0, 0.9F, 0.1F, 0})}),
              ElementsAre(1, 2));
}

TEST(BlockSelector, EachHeadsOwnBestBlockIsIn) {
  // By the mean, blocks 1 and 2 win; block 4 is the second head's best by a little.
  const SelectionShape shape{6, 0, 6, 2};
  EXPECT_THAT(
      selected(shape, {Head({0, 0.5F, 0.5F, 0, 0, 0}), Head({0.2F, 0.19F, 0.19F, 0.2F, 0.22F, 0})}),
      ElementsAre(1, 4));
}

TEST(BlockSelector, SinkMassIsInTheTotal) {
  // The first head looks at the sink: its shares elsewhere are small, so the second head decides.
  const SelectionShape shape{6, 1, 6, 3};
  EXPECT_THAT(selected(shape, {Head({1000, 1, 2, 0, 0, 0}), Head({0, 0, 0, 5, 1, 4})}),
              ElementsAre(0, 2, 3, 5));
}

TEST(BlockSelector, ChunksWithDifferentReferencesAreBroughtTogether) {
  const SelectionShape shape{8, 0, 8, 2};
  // Chunks of 4 blocks: the second chunk's masses are 2^10 times as large.
  const std::vector<float> masses = {512, 4, 3, 2, 1, 0.25F, 0.125F, 0};
  const std::vector<float> references = {-4, 6};
  const std::vector<float> sums = {521, 1.375F};
  const HeadMasses head{masses, references, sums};
  SelectorScratch scratch;
  std::vector<std::int32_t> out(2);
  select_blocks(shape, std::span(&head, 1), 4, scratch, out);
  EXPECT_THAT(out, ElementsAre(0, 4));
}

TEST(BlockSelector, MassesThatAreNoNumbersDoNoHarm) {
  const SelectionShape shape{6, 1, 5, 2};
  EXPECT_THAT(selected(shape, {Head({NAN, NAN, NAN, NAN, NAN, NAN})}), ElementsAre(0, 1, 2, 5));
  EXPECT_THAT(selected(shape, {Head({0, 0, 0, 0, 0, 0})}), ElementsAre(0, 1, 2, 5));
  // What is infinite has no share that is a number, so it does not win.
  EXPECT_THAT(selected(shape, {Head({1, INFINITY, 2, 1, 1, 1})}), ElementsAre(0, 2, 3, 5));
}

// Share of each block, mean over the heads, in double.
std::vector<double> naive_masses(const std::vector<Head>& heads, int chunk_blocks) {
  std::vector<double> shares(heads.front().masses.size(), 0.0);
  for (const Head& head : heads) {
    std::vector<double> masses;
    for (std::size_t b = 0; b < head.masses.size(); ++b) {
      const auto chunk = b / static_cast<std::size_t>(chunk_blocks);
      masses.push_back(static_cast<double>(head.masses[b]) *
                       std::exp2(static_cast<double>(head.references[chunk])));
    }
    const double total = std::accumulate(masses.begin(), masses.end(), 0.0);
    for (std::size_t b = 0; b < masses.size(); ++b) {
      shares[b] += masses[b] / total / static_cast<double>(heads.size());
    }
  }
  return shares;
}

TEST(BlockSelector, MassesAndRunnersUpAreThoseOfANaiveComputation) {
  std::mt19937 random(11);
  constexpr int kChunk = 16;
  for (int round = 0; round < 200; ++round) {
    const int num_blocks = 20 + static_cast<int>(random() % 150);
    std::vector<Head> heads;
    for (unsigned h = 0; h < 1 + random() % 4; ++h) {
      std::vector<float> masses(static_cast<std::size_t>(num_blocks));
      for (float& x : masses) {
        x = random() % 10 == 0 ? 0.0F : std::exp2(static_cast<float>(random() % 800) / -100.0F);
      }
      Head head(masses);
      head.references.clear();
      head.sums.clear();
      for (std::size_t first = 0; first < masses.size(); first += kChunk) {
        const auto end = std::min(masses.size(), first + kChunk);
        head.references.push_back(static_cast<float>(random() % 4));
        head.sums.push_back(std::accumulate(masses.begin() + static_cast<std::ptrdiff_t>(first),
                                            masses.begin() + static_cast<std::ptrdiff_t>(end),
                                            0.0F));
      }
      heads.push_back(head);
    }
    const SelectionShape shape{num_blocks, static_cast<int>(random() % 3), num_blocks - 5,
                               static_cast<int>(random() % 8)};
    std::vector<HeadMasses> views;
    for (const Head& head : heads) {
      views.push_back(head.view());
    }
    SelectorScratch scratch;
    std::vector<std::int32_t> plain(static_cast<std::size_t>(shape.num_selected()));
    select_blocks(shape, views, kChunk, scratch, plain);
    block_scores(shape, views, kChunk, scratch);
    const std::vector<float> scores = scratch.scores;
    const std::vector<double> shares = naive_masses(heads, kChunk);
    const int wanted = 1 + static_cast<int>(random() % 6);
    std::vector<float> masses;
    const auto told = on_all_levels([&](SelectorScratch& level_scratch) {
      std::vector<std::int32_t> list(plain.size());
      std::vector<std::int32_t> runners_up(static_cast<std::size_t>(wanted));
      masses.assign(plain.size(), -1.0F);
      select_blocks(shape, views, kChunk, level_scratch, list, {masses, runners_up});
      EXPECT_EQ(list, plain);
      return runners_up;
    });
    for (std::size_t i = 0; i < plain.size(); ++i) {
      EXPECT_NEAR(masses[i], shares[static_cast<std::size_t>(plain[i])], 1e-6);
    }
    std::vector<std::int32_t> order(static_cast<std::size_t>(shape.recent_begin) -
                                    static_cast<std::size_t>(shape.sink_blocks));
    std::iota(order.begin(), order.end(), shape.sink_blocks);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
    });
    const std::vector<std::int32_t> expected(order.begin() + shape.num_best,
                                             order.begin() + shape.num_best + wanted);
    EXPECT_EQ(told, expected) << round;
  }
}

TEST(BlockSelector, TheMassOfWhatIsNoNumberIsZero) {
  const SelectionShape shape{6, 1, 5, 2};
  for (const Head& head : {Head({NAN, NAN, NAN, NAN, NAN, NAN}), Head({1, INFINITY, 2, 1, 1, 1})}) {
    const HeadMasses view = head.view();
    SelectorScratch scratch;
    std::vector<std::int32_t> list(4);
    std::vector<float> masses(4, -1.0F);
    select_blocks(shape, std::span(&view, 1), 64, scratch, list, {masses, {}});
    EXPECT_THAT(masses, ElementsAre(0, 0, 0, 0));
  }
}

}  // namespace
}  // namespace karez
