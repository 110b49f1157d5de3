// The queries that attend() leaves in the rings of the sequences.
#include "attention/query_recorder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "attention/query_ring.h"
#include "base/bf16.h"
#include "support/attention_harness.h"

namespace karez {
namespace query_recorder_test {

using test::AttentionHarness;
using test::HarnessOptions;
using test::run_on_threads;
using test::same_bits;

constexpr int kKvHeads = 2;
constexpr int kGroup = 3;
constexpr int kDim = 16;
constexpr std::size_t kRowFloats = std::size_t{kKvHeads} * kGroup * kDim;

QueryRing make_ring() { return QueryRing({0, -1, 1}, kKvHeads, kDim, 64); }

std::vector<float> random_rows(int num_rows) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<std::size_t>(num_rows) * kRowFloats);
  std::ranges::generate(out, [&] { return normal(random); });
  return out;
}

// Of the query head whose turn it is at the position.
float turn_of(const std::vector<float>& rows, int row, int kv_head, int position, int i) {
  const int head = kv_head * kGroup + QueryRing::head_of(position, kGroup);
  return rows[static_cast<std::size_t>(row) * kRowFloats +
              static_cast<std::size_t>(head * kDim + i)];
}

TEST(QueryRecorder, RecordsTheRowsThatCountWithAnyNumberOfThreads) {
  const std::vector<float> queries = random_rows(40);
  for (const int num_threads : {1, 2, 7}) {
    QueryRing first = make_ring();
    QueryRing second = make_ring();
    std::vector<SequenceRows> sequences(3);
    sequences[0].first_position = 6;
    sequences[0].num_rows = 11;  // 8, 12 and 16 are kept; the rows from 13 on are guesses
    sequences[0].num_hint_rows = 4;
    sequences[0].queries = &first;
    sequences[1].num_rows = 9;  // nobody asks
    sequences[1].first_row = 11;
    sequences[2].first_position = 100;
    sequences[2].num_rows = 20;
    sequences[2].first_row = 20;
    sequences[2].queries = &second;
    QueryRecorder recorder(kKvHeads, kGroup, kDim);
    recorder.plan(sequences);
    for (const int layer : {0, 2}) {
      run_on_threads(num_threads, [&](int thread) {
        recorder.run(layer, {queries.data(), kRowFloats}, thread, num_threads);
      });
    }
    for (const int layer : {0, 2}) {
      for (int head = 0; head < kKvHeads; ++head) {
        for (int i = 0; i < kDim; ++i) {
          const auto is = [&](const QueryRing& ring, int position, int row) {
            return from_bf16(ring.query(layer, head, position)[i]) ==
                   from_bf16(to_bf16(turn_of(queries, row, head, position, i)));
          };
          EXPECT_TRUE(is(first, 8, 2));
          EXPECT_TRUE(is(first, 12, 6));
          EXPECT_EQ(first.query(layer, head, 16)[i], 0);
          EXPECT_EQ(first.query(layer, head, 4)[i], 0);
          EXPECT_TRUE(is(second, 100, 20));
          EXPECT_TRUE(is(second, 116, 36));
        }
      }
    }
  }
}

// A step that begins well before the first window has more rows than the ring has places.
TEST(QueryRecorder, OfRowsThatShareAPlaceTheLastOneCountsWhicheverThreadIsFirst) {
  constexpr int kRows = 90;
  const std::vector<float> queries = random_rows(kRows);
  for (const bool is_last_first : {false, true}) {
    QueryRing ring = make_ring();
    std::vector<SequenceRows> sequences(1);
    sequences[0].num_rows = kRows;
    sequences[0].num_hint_rows = 5;
    sequences[0].queries = &ring;
    QueryRecorder recorder(kKvHeads, kGroup, kDim);
    recorder.plan(sequences);
    for (int i = 0; i < 2; ++i) {
      recorder.run(0, {queries.data(), kRowFloats}, is_last_first ? 1 - i : i, 2);
    }
    for (int position = 24; position < kRows - 5; position += QueryRing::kStride) {
      for (int head = 0; head < kKvHeads; ++head) {
        EXPECT_EQ(from_bf16(ring.query(0, head, position)[0]),
                  from_bf16(to_bf16(turn_of(queries, position, head, position, 0))))
            << position;
      }
    }
  }
}

TEST(QueryRecorder, AttendRecordsLayersWithoutAWindowAndChangesNoResult) {
  HarnessOptions o;
  o.num_heads = 6;
  o.num_kv_heads = 2;
  o.head_dim = 32;
  o.layer_windows = {0, 40, 0};
  o.max_threads = 3;
  std::vector<std::vector<float>> out;
  QueryRing whole({0, -1, 1}, 2, 32, 128);
  QueryRing pieces({0, -1, 1}, 2, 32, 128);
  for (QueryRing* ring : {static_cast<QueryRing*>(nullptr), &whole}) {
    AttentionHarness harness(o);
    const SequenceId sequence = harness.open(1);
    out.push_back(harness.run({{sequence, 90, SequenceRows::kNeverSparse, 0, ring}}, 3));
  }
  EXPECT_TRUE(same_bits(out[0], out[1]));
  AttentionHarness harness(o);
  const SequenceId sequence = harness.open(1);
  for (const int rows : {1, 30, 2, 2, 55}) {
    harness.run({{sequence, rows, SequenceRows::kNeverSparse, 0, &pieces}}, 2);
  }
  for (const int layer : {0, 2}) {
    for (const int head : {0, 1}) {
      for (int position = 0; position < 90; position += 4) {
        EXPECT_EQ(std::memcmp(whole.query(layer, head, position),
                              pieces.query(layer, head, position), 32 * sizeof(std::uint16_t)),
                  0);
        EXPECT_NE(whole.query(layer, head, position)[0], 0);
      }
    }
  }
}

TEST(QueryRecorder, APositionThatIsComputedAgainReplacesTheDraftThatWasRefused) {
  AttentionHarness harness(HarnessOptions{});
  QueryRing ring({0}, 1, 64, 64);
  QueryRing expected({0}, 1, 64, 64);
  const auto run = [&harness](std::uint32_t content, int num_rows, QueryRing& to) {
    const SequenceId sequence = harness.open(content);
    harness.fill(sequence, 18);
    harness.run({{sequence, num_rows, SequenceRows::kNeverSparse, 0, &to}}, 1);
  };
  run(1, 4, ring);
  run(2, 3, expected);
  EXPECT_NE(ring.query(0, 0, 20)[0], expected.query(0, 0, 20)[0]);
  run(2, 3, ring);
  EXPECT_EQ(ring.query(0, 0, 20)[0], expected.query(0, 0, 20)[0]);
}

}  // namespace query_recorder_test
}  // namespace karez
