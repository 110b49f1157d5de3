#include "remote/export_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/remote/two_nodes.h"

namespace karez {
namespace export_table_test {

using std::chrono::seconds;
using testing::HasSubstr;

class ExportTableTest : public testing::Test {
 protected:
  KvExport exported(std::uint64_t epoch = 1) {
    KvExport made;
    made.epoch = epoch;
    made.tokens.assign(20, 3);
    made.num_blocks = 2;
    made.blocks.assign(8, RemoteBlock{});
    return made;
  }
  std::vector<EndedExport> ended() {
    std::vector<EndedExport> list;
    table_.take_ended(now_, list);
    return list;
  }

  Clock::TimePoint now_{seconds(1000)};
  ExportTable table_{test::small_config(), 1 << 16, seconds(30), 2};
};

TEST_F(ExportTableTest, AnExportThatNobodyFetchesExpires) {
  const RequestKey key = table_.add(exported(), now_).value();
  now_ += seconds(29);
  EXPECT_TRUE(ended().empty());
  now_ += seconds(1);
  const std::vector<EndedExport> list = ended();
  ASSERT_EQ(list.size(), 1U);
  EXPECT_EQ(list[0].key, key);
  EXPECT_EQ(list[0].end, ExportEnd::kExpired);
  EXPECT_EQ(table_.open(key, 1, 5, now_).error().code(), StatusCode::kNotFound);
}

TEST_F(ExportTableTest, HeartbeatsKeepItAndSilenceEndsIt) {
  const RequestKey key = table_.add(exported(), now_).value();
  const std::uint64_t lease = table_.open(key, 1, 5, now_).value();
  for (int beat = 0; beat < 10; ++beat) {
    now_ += seconds(20);
    EXPECT_TRUE(table_.prolong(lease, 5, now_));
    EXPECT_TRUE(ended().empty());
  }
  now_ += seconds(30);
  // Before anybody has polled.
  EXPECT_EQ(table_.find(lease, 5, now_), nullptr);
  EXPECT_FALSE(table_.prolong(lease, 5, now_));
  EXPECT_EQ(ended().size(), 1U);
  EXPECT_EQ(table_.num_leases(), 0);
}

TEST_F(ExportTableTest, TheLastReleaseEndsIt) {
  const RequestKey key = table_.add(exported(), now_).value();
  const std::uint64_t first = table_.open(key, 1, 5, now_).value();
  const std::uint64_t second = table_.open(key, 1, 6, now_).value();
  table_.release(first, 5);
  EXPECT_TRUE(ended().empty());
  EXPECT_NE(table_.find(second, 6, now_), nullptr);
  table_.release(second, 6);
  const std::vector<EndedExport> list = ended();
  ASSERT_EQ(list.size(), 1U);
  EXPECT_EQ(list[0].end, ExportEnd::kReleased);
  EXPECT_EQ(table_.num_exports(), 0);
}

TEST_F(ExportTableTest, ALeaseIsOfUseToItsConnectionOnly) {
  const RequestKey key = table_.add(exported(), now_).value();
  const std::uint64_t lease = table_.open(key, 1, 5, now_).value();
  EXPECT_EQ(table_.find(lease, 6, now_), nullptr);
  EXPECT_FALSE(table_.prolong(lease, 6, now_));
  table_.release(lease, 6);
  EXPECT_NE(table_.find(lease, 5, now_), nullptr);
}

TEST_F(ExportTableTest, AConsumerThatWasCutOffMayComeBackWhileTheLeaseLasts) {
  const RequestKey key = table_.add(exported(), now_).value();
  const std::uint64_t lost = table_.open(key, 1, 5, now_).value();
  table_.drop_session(5);
  EXPECT_EQ(table_.find(lost, 5, now_), nullptr);
  EXPECT_TRUE(ended().empty());
  const std::uint64_t lease = table_.open(key, 1, 6, now_).value();
  EXPECT_EQ(table_.num_leases(), 1);
  table_.release(lease, 6);
  EXPECT_EQ(ended().size(), 1U);
}

TEST_F(ExportTableTest, AnotherEpochAndAForeignKeyAreNotFound) {
  const RequestKey key = table_.add(exported(3), now_).value();
  EXPECT_THAT(table_.open(key, 4, 5, now_).error().message(),
              HasSubstr("exported with epoch 3, asked for is epoch 4"));
  EXPECT_FALSE(table_.open(RequestKey{}, 3, 5, now_).has_value());
}

TEST_F(ExportTableTest, RemovingSaysNothingToPoll) {
  const RequestKey key = table_.add(exported(), now_).value();
  const std::uint64_t lease = table_.open(key, 1, 5, now_).value();
  EXPECT_TRUE(table_.remove(key));
  EXPECT_FALSE(table_.remove(key));
  EXPECT_EQ(table_.find(lease, 5, now_), nullptr);
  EXPECT_TRUE(ended().empty());
}

TEST_F(ExportTableTest, LimitsAndShapesAreChecked) {
  KvExport wrong = exported();
  wrong.blocks[3].offset = (1 << 16) - 1023;
  EXPECT_THAT(table_.add(wrong, now_).error().message(), HasSubstr("offset of a block"));
  wrong = exported();
  wrong.blocks.pop_back();
  EXPECT_FALSE(table_.add(wrong, now_).has_value());
  wrong = exported();
  wrong.index.resize(1);
  EXPECT_FALSE(table_.add(wrong, now_).has_value());
  wrong = exported();
  wrong.num_blocks = 1;
  EXPECT_FALSE(table_.add(wrong, now_).has_value());
  wrong = exported();
  wrong.tokens.clear();
  EXPECT_FALSE(table_.add(wrong, now_).has_value());
  const RequestKey key = table_.add(exported(), now_).value();
  EXPECT_TRUE(table_.add(exported(), now_).has_value());
  EXPECT_EQ(table_.add(exported(), now_).error().code(), StatusCode::kResourceExhausted);
  for (std::size_t i = 0; i < ExportTable::kMaxLeasesPerExport; ++i) {
    EXPECT_TRUE(table_.open(key, 1, 5, now_).has_value());
  }
  EXPECT_EQ(table_.open(key, 1, 5, now_).error().code(), StatusCode::kResourceExhausted);
}

}  // namespace export_table_test
}  // namespace karez
