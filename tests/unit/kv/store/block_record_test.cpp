#include "kv/store/block_record.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/hex.h"
#include "support/store/prompt_records.h"

namespace karez::test {
namespace block_record_test {

TEST(BlockRecord, HasTheBytesOfTheFormatPage) {
  const RecordShape shape = small_shape("m", 64);
  const RecordKey key = prompt_keys(shape, 2)[1];
  std::vector<std::byte> record(shape.record_bytes());
  for (std::size_t i = 0; i < 64; ++i) {
    record[kRecordHeaderBytes + i] = static_cast<std::byte>(i);
  }
  seal_record(shape, key, record);
  std::string tokens;
  for (int token = 17; token < 33; ++token) {
    tokens += to_hex(std::as_bytes(std::span(&token, 1)));
  }
  // docs/formats.md
  EXPECT_EQ(to_hex(std::span(record).first(kRecordHeaderBytes)),
            "4b4152455a4b560a"  // KAREZKV\n
            "01000000"          // version
            "c0000000"          // header bytes
            "3f6617e8d38cc5be0aaf2e9c2b298bd11cd3b638ff666786c37c87071428f8a1"
            "e2d173c892d2414ef14c2e4b3438a8f3169f7e87865c51f6c3979587c70ed44e"
            "01000000"    // index
            "10000000" +  // tokens in a block
                tokens +
                "4000000000000000"  // payload bytes
                "55edb08990eb8761"
                "00000000000000000000000000000000"
                "729264651c210b50");
  EXPECT_EQ(key.name.hex(), "0eeab05ddbcc338f6d7251b9c12c70237b3ef0f06dd146b57d51322dbe386f03");
}

TEST(BlockRecord, IsUsedOnlyForWhatItIs) {
  const RecordShape shape = small_shape();
  const std::vector<RecordKey> keys = prompt_keys(shape, 3);
  const std::vector<std::byte> record = sealed_record(shape, keys[1]);
  EXPECT_EQ(check_record(shape, keys[1], record), RecordProblem::kNone);
  EXPECT_EQ(check_record(shape, keys[2], record), RecordProblem::kContent);
  EXPECT_EQ(check_record(shape, prompt_keys(shape, 2, 1, "another salt")[1], record),
            RecordProblem::kContent);
  EXPECT_EQ(check_record(small_shape("another model"), keys[1], record), RecordProblem::kIdentity);
  RecordKey moved = keys[1];
  moved.index = 2;
  EXPECT_EQ(check_record(shape, moved, record), RecordProblem::kContent);
}

TEST(BlockRecord, NoFlippedBitPasses) {
  const RecordShape shape = small_shape("a model", 128);
  const RecordKey key = prompt_keys(shape, 1)[0];
  std::vector<std::byte> record = sealed_record(shape, key);
  for (std::size_t bit = 0; bit < record.size() * 8; ++bit) {
    const auto mask = static_cast<std::byte>(1 << bit % 8);
    record[bit / 8] ^= mask;
    EXPECT_NE(check_record(shape, key, record), RecordProblem::kNone) << "bit " << bit;
    record[bit / 8] ^= mask;
  }
  EXPECT_EQ(check_record(shape, key, record), RecordProblem::kNone);
}

TEST(BlockRecord, NoOtherLengthPasses) {
  const RecordShape shape = small_shape("a model", 128);
  const RecordKey key = prompt_keys(shape, 1)[0];
  std::vector<std::byte> record = sealed_record(shape, key);
  for (std::size_t length = 0; length < record.size(); ++length) {
    EXPECT_NE(check_record(shape, key, std::span(record).first(length)), RecordProblem::kNone);
  }
  record.push_back(std::byte{0});
  EXPECT_EQ(check_record(shape, key, record), RecordProblem::kLength);
}

TEST(RecordKey, NamesDependOnAllThatCameBefore) {
  const RecordShape shape = small_shape();
  const auto keys = prompt_keys(shape, 3);
  EXPECT_EQ(keys[1].parent, keys[0].name);
  EXPECT_EQ(keys[2].index, 2U);
  EXPECT_NE(prompt_keys(shape, 1, 2)[0].name, keys[0].name);
  EXPECT_NE(prompt_keys(shape, 1, 1, "salt")[0].name, keys[0].name);
  EXPECT_NE(prompt_keys(small_shape("b"), 1)[0].name, keys[0].name);
}

}  // namespace block_record_test
}  // namespace karez::test
