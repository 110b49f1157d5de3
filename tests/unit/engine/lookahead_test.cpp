// Which hints come of what rows have selected, over a real store with a home tier.
#include "engine/lookahead.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/block_loader.h"
#include "kv/tier/host_tier.h"

namespace karez {
namespace lookahead_test {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

constexpr int kBlocks = 40;  // complete ones; one more is being filled
constexpr int kOwn = kBlocks;
constexpr int kLayers = 3;
constexpr int kNumTokens = kBlocks * kBlockSize + 5;
constexpr int kMany = 1000;

KVCacheSpec spec() {
  KVCacheSpec spec;
  spec.num_layers = kLayers;
  spec.num_kv_heads = 2;
  spec.head_dim = 16;
  return spec;
}

struct List {
  int sequence = 0;
  int row = 0;  // within the sequence's rows
  int kv_head = 0;
  bool is_hint = false;
  std::vector<std::int32_t> blocks;
  std::vector<float> masses;
  std::vector<std::int32_t> runners_up;
};

// Two sequences of 5 rows in a step, of which the last may be hint rows. Nothing but the blocks
// that are being filled is in the fast tier at first.
class LookaheadHints : public testing::Test {
 protected:
  LookaheadHints() {
    const auto slot = static_cast<std::int64_t>(spec().slot_bytes());
    auto home =
        HostTier::create(
            {.block_bytes = spec().slot_bytes(), .capacity_bytes = 2000 * slot, .num_workers = 0})
            .value();
    kv_ = KVCacheManager::create(spec(), 600 * slot, std::move(home)).value();
    for (int s = 0; s < 2; ++s) {
      ids_.push_back(kv_->open());
      EXPECT_TRUE(kv_->extend(ids_.back(), kNumTokens));
      SequenceRows rows;
      rows.first_position = kNumTokens - 5;
      rows.num_rows = 5;
      rows.first_row = 5 * s;
      rows.first_sparse_position = 0;
      rows.tables = {kv_->table(ids_.back(), 0)};
      sequences_.push_back(rows);
      kv_->write_home(ids_.back());
    }
    for (int i = 0; i < 4; ++i) {
      residency().advance();
      residency().settle();
    }
    residency().make_room(600);
    EXPECT_THAT(fast(0, 0, 0), ElementsAre(kOwn));
  }
  ~LookaheadHints() override {
    residency().settle();
    EXPECT_EQ(kv_->check_invariants(), "");
    for (const SequenceId id : ids_) {
      kv_->close(id);
    }
    residency().settle();
    residency().advance();
    EXPECT_EQ(kv_->stats().slots_used, 0);
    EXPECT_EQ(kv_->check_invariants(), "");
  }

  Residency& residency() { return *kv_->residency(); }
  std::vector<int> fast(int sequence, int layer, int kv_head) const {
    std::vector<int> entries;
    const SlotId* slots = kv_->layer(layer).slots_of_head(kv_head);
    for (int entry = 0; entry <= kBlocks; ++entry) {
      const BlockId block =
          sequences_[static_cast<std::size_t>(sequence)].tables[0][static_cast<std::size_t>(entry)];
      if (!slots[block.value].is_none()) {
        entries.push_back(entry);
      }
    }
    return entries;
  }
  static LookaheadOptions with(std::initializer_list<LookaheadSource> sources,
                               std::int64_t cap_blocks = kMany) {
    LookaheadOptions options;
    for (const LookaheadSource source : sources) {
      options.sources.add(source);
    }
    options.fetch_cap_bytes = cap_blocks * static_cast<std::int64_t>(spec().slot_bytes());
    return options;
  }

  // Of the first sequences; those without a list read everything.
  void begin(BlockLoader& loader, std::size_t num_sequences,
             LookaheadSource hint_rows = LookaheadSource::kProbe) {
    loader.begin_step(*kv_, std::span(sequences_).first(num_sequences), hint_rows);
  }
  // One layer; what may be named of it for each KV head afterwards.
  std::vector<int> select(BlockLoader& loader, int layer, std::vector<List> lists) {
    std::vector<SelectedBlocks> selected;
    for (List& list : lists) {
      const int position =
          sequences_[static_cast<std::size_t>(list.sequence)].first_position + list.row;
      selected.push_back({list.sequence, position, list.kv_head, list.is_hint, list.blocks,
                          list.masses, list.runners_up});
    }
    loader.on_selected(layer, selected);
    return {loader.num_to_rank(layer, 0), loader.num_to_rank(layer, 1)};
  }
  // Blocks 20 to 39 enter in both heads of all layers, so that as many may be named.
  void warm_up() {
    BlockLoader loader;
    std::vector<std::int32_t> blocks;
    for (int b = 20; b < kBlocks; ++b) {
      blocks.push_back(b);
    }
    blocks.push_back(kOwn);
    begin(loader, 1);
    for (int layer = 0; layer < kLayers; ++layer) {
      select(loader, layer, {{.blocks = blocks}, {.kv_head = 1, .blocks = blocks}});
    }
    loader.end_step();
  }

  // Hints by source, without sources that gave none.
  std::map<LookaheadSource, std::int64_t> predicted() {
    const PrefetchStats stats = residency().stats().prefetch;
    std::map<LookaheadSource, std::int64_t> counts;
    for (const LookaheadSource source : kLookaheadSources) {
      if (stats.of(source).predicted > 0) {
        counts[source] = stats.of(source).predicted;
      }
    }
    return counts;
  }

  std::unique_ptr<KVCacheManager> kv_;
  std::vector<SequenceId> ids_;
  std::vector<SequenceRows> sequences_;
};

// A row that generates, two drafts of it, and a row of another sequence.
std::vector<List> rows_with_runners_up() {
  return {{.row = 0, .blocks = {20, kOwn}, .runners_up = {1, 2, 3, 4, 5, 6, 7, 8}},
          {.row = 1, .blocks = {20, kOwn}, .runners_up = {9, 10, 11, 12, 13, 14}},
          {.row = 2, .kv_head = 1, .blocks = {20, kOwn}, .runners_up = {15, 16, 17}},
          {.sequence = 1, .row = 0, .blocks = {kOwn}, .runners_up = {1, 2, 3, 4, 5}}};
}

TEST_F(LookaheadHints, RunnersUpOfTheFirstRowArePreviousAndThoseOfDraftsAreDraft) {
  warm_up();
  for (const bool previous : {false, true}) {
    for (const bool draft : {false, true}) {
      LookaheadOptions options = with({});
      if (previous) {
        options.sources.add(LookaheadSource::kPrevious);
      }
      if (draft) {
        options.sources.add(LookaheadSource::kDraft);
      }
      const auto before = predicted();
      BlockLoader loader({}, options);
      begin(loader, 2);
      const std::vector<int> limits = select(loader, 1, rows_with_runners_up());
      loader.end_step();
      ASSERT_GT(limits[0], 0);
      ASSERT_GT(limits[1], 0);
      const auto named = [&](int head, int runners_up) {
        return std::min(limits[static_cast<std::size_t>(head)], runners_up);
      };
      auto expected = before;
      if (previous) {
        expected[LookaheadSource::kPrevious] += named(0, 8) + named(0, 5);
      }
      if (draft) {
        expected[LookaheadSource::kDraft] += named(0, 6) + named(1, 3);
      }
      EXPECT_EQ(predicted(), expected) << previous << draft;
    }
  }
}

TEST_F(LookaheadHints, TheBestRunnersUpComeFirstAndAreFetched) {
  warm_up();
  BlockLoader loader({}, with({LookaheadSource::kPrevious}));
  begin(loader, 1);
  const std::vector<int> limits =
      select(loader, 1, {{.blocks = {20, kOwn}, .runners_up = {9, 3, 7, 1, 5}}});
  loader.end_step();
  residency().settle();
  const std::vector<int> order = {9, 3, 7, 1, 5};
  std::vector<int> expected(order.begin(), order.begin() + std::min(limits[0], 5));
  std::ranges::sort(expected);
  std::vector<int> fetched = fast(0, 1, 0);
  std::erase_if(fetched, [](int entry) { return entry >= 20; });
  EXPECT_EQ(fetched, expected);
  EXPECT_THAT(fast(1, 1, 0), ElementsAre(kOwn)) << "of the other sequence nothing";
  EXPECT_THAT(fast(0, 2, 0), testing::SizeIs(21)) << "of another layer nothing";
}

TEST_F(LookaheadHints, NothingIsNamedWhereNothingEnters) {
  BlockLoader loader({}, with({LookaheadSource::kPrevious, LookaheadSource::kDraft}));
  begin(loader, 1);
  EXPECT_THAT(select(loader, 1, {{.blocks = {kOwn}, .runners_up = {1, 2, 3}}}), ElementsAre(0, 0));
  loader.end_step();
  EXPECT_THAT(predicted(), IsEmpty());
}

TEST_F(LookaheadHints, WhatHintRowsGoWithoutIsProbeOrSelfByTheStep) {
  for (const LookaheadSource rows : {LookaheadSource::kProbe, LookaheadSource::kSelf}) {
    for (const LookaheadSource on : {LookaheadSource::kProbe, LookaheadSource::kSelf}) {
      const auto before = predicted();
      BlockLoader loader({}, with({on}, /*cap_blocks=*/0));
      for (SequenceRows& sequence : sequences_) {
        sequence.num_hint_rows = 1;
      }
      begin(loader, 1, rows);
      select(loader, 1,
             {{.blocks = {kOwn}},
              {.row = 4,
               .is_hint = true,
               .blocks = {1, 2, 3, 4, kOwn},
               .masses = {0.4F, 0.1F, 0.2F, 0.3F, 0.0F},
               .runners_up = {11, 12}}});
      const auto lacked = static_cast<std::int64_t>(loader.wanted().size());
      loader.end_step();
      EXPECT_GT(lacked, 0);
      auto expected = before;
      if (rows == on) {
        expected[rows] += lacked;
      }
      EXPECT_EQ(predicted(), expected) << to_string(rows) << " " << to_string(on);
      residency().settle();
      residency().make_room(600);
    }
  }
}

TEST_F(LookaheadHints, WhatABoundSkippedIsFetchedWithoutAnySource) {
  BlockLoader loader(OnMiss{1}, with({}));
  begin(loader, 1);
  select(loader, 0,
         {{.blocks = {1, 2, 3, kOwn},
           .masses = {0.4F, 0.1F, 0.2F, 0.1F},
           .runners_up = {11, 12, 13}}});
  loader.end_step();
  residency().settle();
  EXPECT_THAT(predicted(), ElementsAre(Pair(LookaheadSource::kPrevious, 2)));
  EXPECT_THAT(fast(0, 0, 0), ElementsAre(1, 2, 3, kOwn));
}

TEST_F(LookaheadHints, OffHintsNothing) {
  warm_up();
  BlockLoader loader;
  for (SequenceRows& sequence : sequences_) {
    sequence.num_hint_rows = 1;
  }
  begin(loader, 2);
  for (int layer = 0; layer < kLayers; ++layer) {
    std::vector<List> lists = rows_with_runners_up();
    lists.push_back({.row = 4,
                     .is_hint = true,
                     .blocks = {1, 2, kOwn},
                     .masses = {0.5F, 0.2F, 0},
                     .runners_up = {5}});
    select(loader, layer, lists);
  }
  loader.end_step();
  EXPECT_THAT(predicted(), IsEmpty());
  EXPECT_EQ(residency().stats().prefetch.bytes_fetched, 0);
}

TEST_F(LookaheadHints, OfWhatTheNextLayerWillReadTheBestOfEveryRowComeFirst) {
  BlockLoader loader({}, with({LookaheadSource::kLayer}, /*cap_blocks=*/4));
  begin(loader, 2);
  select(loader, 0, {{.blocks = {kOwn}}, {.sequence = 1, .blocks = {kOwn}}});
  const std::vector<std::int32_t> a = {7, 3, 1};
  const std::vector<std::int32_t> b = {9};
  const std::vector<std::int32_t> c = {12, 2};
  const int position = kNumTokens - 5;
  const std::vector<RankedBlocks> ranked = {
      {0, position, 0, a}, {0, position, 1, b}, {1, position, 0, c}, {1, position, 1, {}}};
  loader.on_ranked(1, ranked);
  loader.end_step();
  residency().settle();
  EXPECT_THAT(predicted(), ElementsAre(Pair(LookaheadSource::kLayer, 6)));
  EXPECT_THAT(fast(0, 1, 0), ElementsAre(3, 7, kOwn));
  EXPECT_THAT(fast(0, 1, 1), ElementsAre(9, kOwn));
  EXPECT_THAT(fast(1, 1, 0), ElementsAre(12, kOwn));
  EXPECT_THAT(fast(1, 1, 1), ElementsAre(kOwn));
  EXPECT_EQ(residency().stats().prefetch.dropped, 2);
}

TEST_F(LookaheadHints, OutsideAStepAndWithoutAHomeThereIsNothingToName) {
  BlockLoader loader({}, with({LookaheadSource::kLayer}));
  EXPECT_EQ(loader.num_to_rank(1, 0), 0);
  loader.on_ranked(1, {});
  const auto kv = KVCacheManager::create(spec(), 1 << 20).value();
  loader.begin_step(*kv, {});
  EXPECT_EQ(loader.num_to_rank(1, 0), 0);
  loader.end_step();
  EXPECT_THAT(predicted(), IsEmpty());
}

TEST(Lookahead, SourcesSayWhatSelectionHasToTell) {
  struct Case {
    const char* sources;
    bool runners_up;
    bool masses;
    bool rank_ahead;
  };
  for (const Case& one : {Case{"off", false, false, false}, Case{"previous", true, false, false},
                          Case{"draft", true, false, false}, Case{"probe", false, true, false},
                          Case{"self", false, true, false}, Case{"layer", false, false, true},
                          Case{"draft,self,layer", true, true, true}}) {
    SparseOptions sparse;
    add_what_lookahead_needs(parse_lookahead(one.sources).value(), sparse);
    EXPECT_EQ(sparse.runners_up > 0, one.runners_up) << one.sources;
    EXPECT_EQ(sparse.list_masses, one.masses) << one.sources;
    EXPECT_EQ(sparse.rank_ahead, one.rank_ahead) << one.sources;
  }
  SparseOptions bounded;
  bounded.list_masses = true;
  add_what_lookahead_needs({}, bounded);
  EXPECT_TRUE(bounded.list_masses) << "asked for by someone else";
}

}  // namespace lookahead_test
}  // namespace karez
