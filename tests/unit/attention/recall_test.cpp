#include "attention/recall.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "attention/block_store.h"
#include "kv/block_layout.h"

namespace karez {
namespace recall_test {

constexpr int kDim = 16;

// Blocks of keys whose first coordinate is the token's score.
class Slots {
 public:
  Slots(KvType type, const std::vector<float>& scores)
      : slot_bytes_(BlockLayout::of(type, kDim).slot_bytes) {
    const std::size_t num_blocks = (scores.size() + kBlockSize - 1) / kBlockSize;
    bytes_.resize(num_blocks * slot_bytes_);
    slots_.resize(num_blocks);
    for (std::size_t t = 0; t < scores.size(); ++t) {
      std::vector<float> key(kDim, 0.0F);
      key[0] = scores[t];
      const std::size_t block = t / kBlockSize;
      store_in_block(type, kDim, bytes_.data() + block * slot_bytes_,
                     static_cast<int>(t % kBlockSize), 1, {key.data(), kDim}, {key.data(), kDim});
    }
    for (std::size_t b = 0; b < num_blocks; ++b) {
      slots_[b] = SlotId(static_cast<std::uint32_t>(b));
      table_.push_back(BlockId(static_cast<std::uint32_t>(b)));
    }
  }
  KVLayerView view() { return {bytes_.data(), slot_bytes_, slots_.data(), slots_.size()}; }
  BlockTableView table() const { return table_; }

 private:
  std::size_t slot_bytes_;
  std::vector<std::byte> bytes_;
  std::vector<SlotId> slots_;
  std::vector<BlockId> table_;
};

TEST(Recall, IsTheSoftmaxMassOfTheSelectedBlocks) {
  // Blocks 0, 1 and 2 (cut at 40 tokens) with scores 0, ln 2 and ln 4: masses 16, 32 and 32.
  std::vector<float> scores(48, 0.0F);
  std::fill(scores.begin() + 16, scores.begin() + 32, std::log(2.0F));
  std::fill(scores.begin() + 32, scores.end(), std::log(4.0F));
  for (const KvType type : {KvType::kF32, KvType::kBf16, KvType::kQ8_0}) {
    Slots slots(type, scores);
    std::vector<float> queries(2 * kDim, 0.0F);
    queries[0] = 2.0F;  // with a scale of 1/2 the scores are the keys' first coordinates
    const RecallShape shape{type, kDim, 2, 0.5F, 0.0F};
    const std::vector<std::int32_t> selected = {0, 2};
    const std::vector<float> masses =
        recalled_mass(shape, slots.view(), slots.table(), 0, 39, queries.data(), selected);
    ASSERT_EQ(masses.size(), 2U);
    EXPECT_NEAR(masses[0], 48.0F / 80.0F, 3e-3F);
    EXPECT_NEAR(masses[1], 24.0F / 40.0F, 1e-6F);  // a query of zeros sees 40 equal tokens
  }
}

TEST(Recall, TheSoftCapBoundsScores) {
  std::vector<float> scores(32, 0.0F);
  std::fill(scores.begin(), scores.begin() + 16, 1000.0F);
  Slots slots(KvType::kF32, scores);
  std::vector<float> query(kDim, 0.0F);
  query[0] = 1.0F;
  const std::vector<std::int32_t> selected = {0};
  const std::vector<float> masses = recalled_mass({KvType::kF32, kDim, 1, 1.0F, 1.0F}, slots.view(),
                                                  slots.table(), 0, 31, query.data(), selected);
  EXPECT_NEAR(masses[0], 1.0F / (1.0F + std::exp(-1.0F)), 1e-6F);
}

TEST(Recall, SummaryIsByLayerWithMeanFirstPercentileAndWorst) {
  std::vector<RecallSample> samples;
  for (int i = 0; i < 200; ++i) {
    samples.push_back({1, 0, i, 0, static_cast<float>(200 - i) / 200.0F});
  }
  const std::vector<RecallSummary> summary = summarise_recall(samples, 3);
  ASSERT_EQ(summary.size(), 3U);
  EXPECT_EQ(summary[0].count, 0);
  EXPECT_EQ(summary[1].count, 200);
  EXPECT_NEAR(summary[1].mean, 0.5025, 1e-6);
  EXPECT_NEAR(summary[1].p1, 0.015, 1e-6);
  EXPECT_NEAR(summary[1].worst, 0.005, 1e-6);
}

}  // namespace recall_test
}  // namespace karez
