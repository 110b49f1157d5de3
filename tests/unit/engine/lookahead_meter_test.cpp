#include "engine/lookahead_meter.h"

#include <gtest/gtest.h>

namespace karez {
namespace lookahead_meter_test {

struct List {
  int position;
  bool is_hint;
  std::vector<std::int32_t> blocks;
  std::vector<float> masses;
  int sequence = 0;
  int kv_head = 0;
};

void note(LookaheadMeter& meter, int layer, std::vector<List> lists) {
  std::vector<SelectedBlocks> selected;
  for (List& list : lists) {
    selected.push_back(
        {list.sequence, list.position, list.kv_head, list.is_hint, list.blocks, list.masses, {}});
  }
  meter.note(layer, selected);
}

TEST(LookaheadMeter, ComparesARowWithTheOneBeforeIt) {
  LookaheadMeter meter;
  note(meter, 3, {{100, false, {0, 2, 5, 9}, {0.1F, 0.2F, 0.3F, 0.4F}}});
  note(meter, 3, {{101, false, {0, 2, 6, 9}, {0.1F, 0.2F, 0.6F, 0.1F}}});
  const auto figures = meter.take();
  EXPECT_EQ(figures.previous.lists, 1);
  EXPECT_DOUBLE_EQ(figures.previous.agreement_mean, 0.75);
  EXPECT_NEAR(figures.previous.mass_mean, 0.4, 1e-6);
  EXPECT_EQ(figures.probe.lists, 0);
}

TEST(LookaheadMeter, ComparesARowWithItsProbe) {
  LookaheadMeter meter;
  note(meter, 0, {{100, false, {1, 2}, {0.5F, 0.5F}}, {101, true, {1, 3, 4}, {0.2F, 0.2F, 0.2F}}});
  note(meter, 0, {{101, false, {1, 3, 7}, {0.5F, 0.25F, 0.25F}}});
  const auto figures = meter.take();
  EXPECT_EQ(figures.probe.lists, 1);
  EXPECT_NEAR(figures.probe.agreement_mean, 2.0 / 3, 1e-6);
  EXPECT_NEAR(figures.probe.mass_mean, 0.75, 1e-6);
  EXPECT_NEAR(figures.previous.agreement_mean, 1.0 / 3, 1e-6);
}

TEST(LookaheadMeter, AGuessIsForOnePositionLayerHeadAndSequence) {
  LookaheadMeter meter;
  note(meter, 0, {{100, false, {1, 2}, {0.5F, 0.5F}}});
  note(meter, 1, {{101, false, {1, 2}, {0.5F, 0.5F}}});
  note(meter, 0, {{101, false, {1, 2}, {0.5F, 0.5F}, 1}});
  note(meter, 0, {{101, false, {1, 2}, {0.5F, 0.5F}, 0, 1}});
  note(meter, 0, {{103, false, {1, 2}, {0.5F, 0.5F}}});
  EXPECT_EQ(meter.take().previous.lists, 0);
}

TEST(LookaheadMeter, GivesTheWorstToo) {
  LookaheadMeter meter;
  for (int position = 0; position < 301; ++position) {
    const bool is_odd_one = position == 150;
    note(meter, 0, {{position, false, {is_odd_one ? 7 : 1, 8}, {0.5F, 0.5F}}});
  }
  const auto figures = meter.take().previous;
  EXPECT_EQ(figures.lists, 300);
  EXPECT_DOUBLE_EQ(figures.agreement_worst, 0.5);
  EXPECT_DOUBLE_EQ(figures.agreement_p1, 1.0) << "2 of 300 are less than a hundredth";
  EXPECT_NEAR(figures.agreement_mean, 299.0 / 300, 1e-6);
  EXPECT_EQ(meter.take().previous.lists, 0);
}

}  // namespace lookahead_meter_test
}  // namespace karez
