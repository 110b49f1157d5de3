#include "kv/window_blocks.h"

#include <gtest/gtest.h>

#include <limits>

namespace karez {
namespace {

TEST(WindowBlocks, TokensFillWholeBlocks) {
  EXPECT_EQ(num_blocks(0), 0);
  EXPECT_EQ(num_blocks(1), 1);
  EXPECT_EQ(num_blocks(16), 1);
  EXPECT_EQ(num_blocks(17), 2);
  EXPECT_EQ(num_blocks(std::numeric_limits<std::int64_t>::max()), std::int64_t{1} << 59);
}

TEST(WindowBlocks, FirstKeptBlockIsTheFirstThatARowReadsOrWrites) {
  for (int window = 1; window < 70; ++window) {
    for (int position = 0; position < 200; ++position) {
      std::int64_t block = 0;
      while (block * kBlockSize + kBlockSize - 1 <= position - window) {
        ++block;
      }
      EXPECT_EQ(first_kept_block(position, window), block) << position << " " << window;
    }
  }
}

TEST(WindowBlocks, FullAttentionKeepsAllBlocks) { EXPECT_EQ(first_kept_block(1'000'000, 0), 0); }

}  // namespace
}  // namespace karez
