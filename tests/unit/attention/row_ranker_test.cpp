// What the ranker names, against shares that are computed one block at a time.
#include "attention/row_ranker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "attention/index_query.h"
#include "kv/block_layout.h"
#include "support/attention_harness.h"

namespace karez {
namespace row_ranker_test {

using test::run_on_threads;

constexpr int kDim = 32;
constexpr int kKvHeads = 2;
constexpr int kBlocks = 90;  // the last one is being filled
constexpr int kNumTokens = kBlocks * kBlockSize - 5;
constexpr float kScoreScale = 0.4F;

struct Setting {
  int group = 3;
  int num_rows = 1;
  int num_hint_rows = 0;
  int num_sequences = 1;
  KeyIndexKind kind = KeyIndexKind::kR2;
  CpuLevel cpu_level = CpuLevel::kPortable;
  int max_threads = 1;
};

struct Named {
  int sequence;
  int position;
  int kv_head;
  std::vector<std::int32_t> blocks;

  friend bool operator==(const Named&, const Named&) = default;
};

// One layer of random keys; sequences have blocks of their own, one behind the other.
class Scene {
 public:
  explicit Scene(const Setting& setting)
      : setting_(setting),
        num_ids_(static_cast<std::uint32_t>(kBlocks * setting.num_sequences)),
        index_(make_index()),
        slots_(std::size_t{kKvHeads} * num_ids_),
        ranker_(
            {1, kKvHeads, setting.group, kDim, kScoreScale, setting.max_threads, setting.cpu_level},
            options()) {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      slots_[i] = SlotId(static_cast<std::uint32_t>(i));
    }
    fill_index();
    for (int s = 0; s < setting.num_sequences; ++s) {
      tables_.emplace_back();
      for (int b = 0; b < kBlocks; ++b) {
        tables_.back().emplace_back(static_cast<std::uint32_t>(s * kBlocks + b));
      }
    }
    for (int s = 0; s < setting.num_sequences; ++s) {
      SequenceRows rows;
      rows.tables = {tables_[static_cast<std::size_t>(s)]};
      rows.first_position = kNumTokens - setting.num_rows;
      rows.num_rows = setting.num_rows;
      rows.first_row = s * setting.num_rows;
      rows.first_sparse_position = 0;
      rows.num_hint_rows = setting.num_hint_rows;
      sequences_.push_back(rows);
    }
    rows_ = find_sparse_rows(sequences_, options(), kKvHeads).rows;
    std::normal_distribution<float> normal(0.0F, 2.0F);
    queries_.resize(static_cast<std::size_t>(setting.num_sequences * setting.num_rows) *
                    row_floats());
    std::ranges::generate(queries_, [&] { return normal(random_); });
  }

  static SparseOptions options(KeyIndexKind kind = KeyIndexKind::kR2) {
    SparseOptions options;
    options.token_budget = 320;
    options.recent_window = 48;
    options.block_index = kind;
    options.rank_ahead = true;
    return options;
  }
  const SelectionShape& shape() const { return rows_.front().shape; }
  std::span<const SparseRow> rows() const { return rows_; }

  void take_slot(int sequence, int kv_head, int block) {
    slots_[slot_index(sequence, kv_head, block)] = SlotId::none();
  }
  bool has_slot(int sequence, int kv_head, int block) const {
    return !slots_[slot_index(sequence, kv_head, block)].is_none();
  }
  // Of each KV head so many blocks, anywhere.
  void take_slots(int count) {
    for (int s = 0; s < setting_.num_sequences; ++s) {
      for (int head = 0; head < kKvHeads; ++head) {
        for (int i = 0; i < count;) {
          const int block = shape().sink_blocks +
                            static_cast<int>(random_() % static_cast<unsigned>(num_between()));
          i += has_slot(s, head, block) ? 1 : 0;
          take_slot(s, head, block);
        }
      }
    }
  }
  // Makes archived pages of entries [begin, end) of all sequences, three in a block, with the
  // records that the entries had.
  void archive(int begin, int end) {
    pages_.clear();
    for (int entry = begin; entry < end; ++entry) {
      pages_.push_back(static_cast<std::uint8_t>((entry - begin) % 3));
    }
    const KeyIndexView view = index_.view(0);
    for (std::size_t s = 0; s < tables_.size(); ++s) {
      std::vector<BlockId>& table = tables_[s];
      for (int entry = begin; entry < end; ++entry) {
        const auto at = static_cast<std::size_t>(entry);
        const int page = (entry - begin) % 3;
        const BlockId block = table[at - static_cast<std::size_t>(page)];
        for (int head = 0; head < kKvHeads; ++head) {
          std::copy_n(view.record(head, table[at]), key_index_block_bytes(setting_.kind, kDim),
                      view.page_record(head, block, page));
          std::copy_n(view.coarse_record(head, table[at]), coarse_record_bytes(kDim),
                      view.coarse_page_record(head, block, page));
        }
        table[at] = block;
      }
      sequences_[s].archived = {begin, end, pages_};
    }
  }
  int num_between() const { return shape().recent_begin - shape().sink_blocks; }

  std::vector<Named> run(const std::vector<int>& wanted, int num_threads = 1) {
    ranker_.plan(sequences_, 0, rows_);
    const KVLayerView view(nullptr, 0, slots_.data(), num_ids_);
    std::atomic<int> num_last = 0;
    run_on_threads(num_threads, [&](int thread) {
      num_last +=
          ranker_.run(0, view, index_.view(0), {queries_.data(), row_floats()}, wanted, thread) ? 1
                                                                                                : 0;
    });
    EXPECT_EQ(num_last, 1);
    std::vector<Named> named;
    for (const RankedBlocks& list : ranker_.ranked()) {
      named.push_back(
          {list.sequence, list.position, list.kv_head, {list.blocks.begin(), list.blocks.end()}});
    }
    return named;
  }

  // What block `block` is worth to the row: its mass by its own record, as a share of the total
  // over the mean keys of all blocks before the recent ones, summed over the query heads.
  double share(const Named& list, int block) const {
    const float* queries = queries_of(list);
    IndexQueries prepared(setting_.group, kDim);
    prepared.prepare(KeyIndexKind::kR2, queries, kScoreScale);
    std::vector<double> totals(static_cast<std::size_t>(setting_.group));
    for (int b = 0; b < shape().recent_begin; ++b) {
      const std::vector<double> scores = coarse_scores(prepared, list, b);
      for (std::size_t v = 0; v < totals.size(); ++v) {
        totals[v] += std::exp2(scores[v]);
      }
    }
    prepared.prepare(setting_.kind, queries, kScoreScale);
    const std::vector<double> masses = log2_masses(
        prepared, setting_.kind, index_.view(0).record(list.kv_head, id(list, block)), kBlockSize);
    double share = 0;
    for (std::size_t v = 0; v < totals.size(); ++v) {
      share += std::exp2(masses[v]) / totals[v];
    }
    return share;
  }

 private:
  std::size_t row_floats() const {
    return static_cast<std::size_t>(kKvHeads * setting_.group * kDim);
  }
  std::size_t slot_index(int sequence, int kv_head, int block) const {
    return static_cast<std::size_t>(kv_head) * num_ids_ +
           static_cast<std::size_t>(sequence * kBlocks + block);
  }
  BlockId id(const Named& list, int block) const {
    return tables_[static_cast<std::size_t>(list.sequence)][static_cast<std::size_t>(block)];
  }
  const float* queries_of(const Named& list) const {
    const SequenceRows& rows = sequences_[static_cast<std::size_t>(list.sequence)];
    const int row = rows.first_row + list.position - rows.first_position;
    return queries_.data() + static_cast<std::size_t>(row) * row_floats() +
           static_cast<std::size_t>(list.kv_head * setting_.group * kDim);
  }

  KeyIndex make_index() const {
    const BlockIdRange range{0, num_ids_};
    return std::move(KeyIndex::create(spec(), setting_.kind, std::span(&range, 1), {},
                                      /*two_level_blocks=*/0,
                                      /*pages_per_block=*/3)
                         .value());
  }
  static KVCacheSpec spec() {
    KVCacheSpec spec;
    spec.num_layers = 1;
    spec.num_kv_heads = kKvHeads;
    spec.head_dim = kDim;
    return spec;
  }
  // Keys of a block stand around a theme of their own, so that blocks are worth different things.
  void fill_index() {
    std::normal_distribution<float> normal;
    std::vector<float> keys(std::size_t{kBlockSize} * kDim);
    std::vector<float> theme(kDim);
    std::vector<std::byte> slot(BlockLayout::of(KvType::kF32, kDim).slot_bytes);
    for (int head = 0; head < kKvHeads; ++head) {
      for (std::uint32_t b = 0; b < num_ids_; ++b) {
        std::ranges::generate(theme, [&] { return normal(random_); });
        for (std::size_t i = 0; i < keys.size(); ++i) {
          keys[i] = theme[i % kDim] + 0.5F * normal(random_);
        }
        const TokenRows rows{keys.data(), kDim};
        store_in_block(KvType::kF32, kDim, slot.data(), 0, kBlockSize, rows, rows);
        index_tokens(setting_.kind, kDim, index_.view(0).record(head, BlockId(b)), 0, kBlockSize,
                     rows, nullptr);
        index_mean(kDim, index_.view(0).coarse_record(head, BlockId(b)), KvType::kF32, slot.data(),
                   nullptr);
      }
    }
  }

  // log2 of the mass of the first tokens of a record, for each query head.
  static std::vector<double> log2_masses(const IndexQueries& queries, KeyIndexKind kind,
                                         const std::byte* record, int num_tokens) {
    const IndexQuery query = queries.view();
    IndexChunk chunk{};
    chunk.num_blocks = 1;
    chunk.num_records = 1;
    chunk.last_tokens = num_tokens;
    chunk.records[0] = record;
    std::vector<float> scores(std::size_t{kScanVectors} * std::size_t{kScanBlocks} * kBlockSize);
    const auto group = static_cast<std::size_t>(query.num_vectors);
    std::vector<float> masses(group * 16);
    std::vector<float> references(group);
    std::vector<float> sums(group);
    const IndexScan scan(CpuLevel::kPortable, kind);
    scan.run(query, chunk, scores.data(), {masses.data(), 16, references.data(), sums.data(), 1});
    std::vector<double> out;
    for (std::size_t v = 0; v < group; ++v) {
      out.push_back(std::log2(static_cast<double>(sums[v])) + static_cast<double>(references[v]));
    }
    return out;
  }
  // Of a block's mean key: its coarse record is one token of r2.
  std::vector<double> coarse_scores(const IndexQueries& queries, const Named& list,
                                    int block) const {
    const KeyIndexLayout layout = KeyIndexLayout::of(KeyIndexKind::kR2, kDim);
    std::vector<std::byte> record(layout.record_bytes);
    const std::byte* coarse = index_.view(0).coarse_record(list.kv_head, id(list, block));
    constexpr std::size_t kGroups = kDim / 16;
    for (std::size_t g = 0; g < kGroups; ++g) {
      std::copy_n(coarse + g * 4, 4, record.begin() + static_cast<std::ptrdiff_t>(g * 64));
    }
    std::copy_n(coarse + kGroups * 4, 2,
                record.begin() + static_cast<std::ptrdiff_t>(layout.scales_offset));
    return log2_masses(queries, KeyIndexKind::kR2, record.data(), 1);
  }

  Setting setting_;
  std::mt19937 random_{17};
  std::uint32_t num_ids_;
  KeyIndex index_;
  std::vector<SlotId> slots_;  // [kKvHeads][ids]
  std::vector<std::vector<BlockId>> tables_;
  std::vector<std::uint8_t> pages_;
  std::vector<SequenceRows> sequences_;
  std::vector<SparseRow> rows_;
  std::vector<float> queries_;
  RowRanker ranker_;
};

// Shares of different processors differ by rounding.
constexpr double kRounding = 1e-3;

class RowRankerOf : public testing::TestWithParam<CpuLevel> {};

INSTANTIATE_TEST_SUITE_P(All, RowRankerOf, testing::ValuesIn(supported_cpu_levels()),
                         [](const testing::TestParamInfo<CpuLevel>& level) {
                           std::string name(to_string(level.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(RowRankerOf, FewBlocksWithoutASlotAreNamedInTheOrderOfTheirShares) {
  for (const KeyIndexKind kind : {KeyIndexKind::kR2, KeyIndexKind::kR3}) {
    for (const int group : {1, 3, 7}) {
      Scene scene({.group = group, .kind = kind, .cpu_level = GetParam()});
      scene.take_slots(14);
      for (const int wanted : {1, 5, 14, 1000}) {
        const std::vector<Named> lists = scene.run({wanted, wanted});
        ASSERT_EQ(lists.size(), std::size_t{kKvHeads});
        for (const Named& list : lists) {
          ASSERT_EQ(list.blocks.size(), static_cast<std::size_t>(std::min(wanted, 14)));
          double last = INFINITY;
          for (const std::int32_t block : list.blocks) {
            EXPECT_FALSE(scene.has_slot(0, list.kv_head, block));
            const double share = scene.share(list, block);
            EXPECT_LE(share, last * (1 + kRounding));
            last = share;
          }
          for (int b = 0; b < kBlocks; ++b) {
            if (!scene.has_slot(0, list.kv_head, b) && std::ranges::count(list.blocks, b) == 0) {
              EXPECT_LE(scene.share(list, b), last * (1 + kRounding)) << b;
            }
          }
        }
      }
    }
  }
}

TEST_P(RowRankerOf, OfManyTheMostUsefulAreFoundByTheirMeanKeys) {
  Scene scene({.cpu_level = GetParam()});
  scene.take_slots(scene.num_between() - 4);
  for (const Named& list : scene.run({12, 12})) {
    ASSERT_EQ(list.blocks.size(), 12U);
    std::vector<std::pair<double, std::int32_t>> all;
    for (int b = 0; b < kBlocks; ++b) {
      if (!scene.has_slot(0, list.kv_head, b)) {
        all.emplace_back(scene.share(list, b), b);
      }
    }
    std::ranges::sort(all, std::greater<>());
    int found = 0;
    for (std::size_t i = 0; i < list.blocks.size(); ++i) {
      found += std::ranges::count(list.blocks, all[i].second) > 0 ? 1 : 0;
    }
    EXPECT_GE(found, 10);
    EXPECT_EQ(list.blocks.front(), all.front().second);
  }
}

TEST_P(RowRankerOf, ArchivedPagesAreNamedLikeBlocks) {
  const auto named = [](bool is_archived) {
    Scene scene({.num_sequences = 2, .cpu_level = GetParam()});
    for (int s = 0; s < 2; ++s) {
      for (int head = 0; head < kKvHeads; ++head) {
        for (int b = 0; b < kBlocks; ++b) {
          scene.take_slot(s, head, b);
        }
      }
    }
    if (is_archived) {
      scene.archive(10, 57);
    }
    return scene.run({20, 20});
  };
  EXPECT_EQ(named(true), named(false));
}

TEST(RowRanker, SinkRecentAndResidentBlocksAreNotNamed) {
  Scene scene({});
  for (int head = 0; head < kKvHeads; ++head) {
    for (int b = 0; b < kBlocks; ++b) {
      if (b < scene.shape().sink_blocks || b >= scene.shape().recent_begin || b % 2 == head) {
        scene.take_slot(0, head, b);
      }
    }
  }
  for (const Named& list : scene.run({64, 64})) {
    EXPECT_GT(list.blocks.size(), 30U);
    for (const std::int32_t block : list.blocks) {
      EXPECT_EQ(block % 2, list.kv_head);
      EXPECT_GE(block, scene.shape().sink_blocks);
      EXPECT_LT(block, scene.shape().recent_begin);
    }
    EXPECT_EQ(std::set(list.blocks.begin(), list.blocks.end()).size(), list.blocks.size());
  }
}

TEST(RowRanker, NothingIsNamedWhereNothingIsWantedOrMissing) {
  Scene scene({});
  for (const Named& list : scene.run({5, 5})) {
    EXPECT_THAT(list.blocks, testing::IsEmpty()) << "all have slots";
  }
  scene.take_slots(20);
  const std::vector<Named> lists = scene.run({0, 3});
  ASSERT_EQ(lists.size(), 2U);
  EXPECT_THAT(lists[0].blocks, testing::IsEmpty());
  EXPECT_THAT(lists[1].blocks, testing::SizeIs(3));
}

TEST(RowRanker, HintRowsArePassedOver) {
  Scene scene({.num_rows = 4, .num_hint_rows = 1, .num_sequences = 2});
  scene.take_slots(20);
  ASSERT_EQ(scene.rows().size(), 8U);
  std::vector<std::pair<int, int>> rows;  // sequence, position
  for (const Named& list : scene.run({2, 2})) {
    rows.emplace_back(list.sequence, list.position);
    EXPECT_THAT(list.blocks, testing::SizeIs(2));
  }
  std::vector<std::pair<int, int>> expected;
  for (int s = 0; s < 2; ++s) {
    for (int r = 0; r < 3; ++r) {
      expected.insert(expected.end(), kKvHeads, {s, kNumTokens - 4 + r});
    }
  }
  EXPECT_EQ(rows, expected);
}

TEST(RowRanker, RowsAndThreadsAndStepsDoNotMix) {
  Scene scene({.num_rows = 3, .num_sequences = 3, .max_threads = 4});
  scene.take_slots(30);
  const std::vector<Named> expected = scene.run({6, 9});
  ASSERT_EQ(expected.size(), 18U);
  for (std::size_t i = 0; i + 2 < expected.size(); i += 2) {
    EXPECT_NE(expected[i].blocks, expected[i + 2].blocks) << "rows have queries of their own";
  }
  for (const Named& list : expected) {
    double last = INFINITY;
    for (const std::int32_t block : list.blocks) {
      EXPECT_FALSE(scene.has_slot(list.sequence, list.kv_head, block));
      const double share = scene.share(list, block);
      EXPECT_LE(share, last * (1 + kRounding));
      last = share;
    }
  }
  for (int round = 0; round < 20; ++round) {
    EXPECT_EQ(scene.run({6, 9}, 1 + round % 4), expected);
  }
}

}  // namespace row_ranker_test
}  // namespace karez
