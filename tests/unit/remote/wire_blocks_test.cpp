// Blocks as they travel: what comes out of them, and what is seen to be no block.
#include "remote/wire_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "attention/archive_page.h"
#include "attention/block_store.h"
#include "kv/block_layout.h"
#include "kv/tier/home_space.h"
#include "support/remote/two_nodes.h"

namespace karez::test {
namespace wire_blocks_test {

using testing::HasSubstr;

constexpr KvType kTypes[] = {KvType::kF32, KvType::kBf16, KvType::kQ8_0};

PeerConfig config_of(KvType type, int head_dim, std::string_view wire_type = kR4Wire) {
  PeerConfig config = small_config();
  config.head_dim = static_cast<std::uint32_t>(head_dim);
  config.block_bytes = BlockLayout::of(type, head_dim).slot_bytes;
  config.kv_type = to_string(type);
  config.wire_type = wire_type;
  return config;
}

std::vector<std::byte> block_of(KvType type, int head_dim, const std::vector<float>& numbers) {
  std::vector<std::byte> block(BlockLayout::of(type, head_dim).slot_bytes);
  const auto stride = static_cast<std::size_t>(head_dim);
  store_in_block(type, head_dim, block.data(), 0, kBlockSize, {numbers.data(), stride},
                 {numbers.data() + kBlockSize * head_dim, stride});
  return block;
}

std::vector<float> numbers_of(KvType type, int head_dim, const std::vector<std::byte>& block) {
  std::vector<float> numbers(static_cast<std::size_t>(2 * kBlockSize * head_dim));
  load_block_keys(type, head_dim, block.data(), numbers.data());
  load_block_values(type, head_dim, block.data(), numbers.data() + kBlockSize * head_dim);
  return numbers;
}

// Keys of a few large coordinates, values of small ones.
std::vector<float> random_numbers(int head_dim) {
  std::mt19937 random(static_cast<unsigned>(head_dim));
  std::normal_distribution<float> normal;
  std::vector<float> numbers;
  for (int i = 0; i < 2 * kBlockSize * head_dim; ++i) {
    numbers.push_back(normal(random) * (i % head_dim % 31 == 0 ? 9.0F : 0.5F));
  }
  return numbers;
}

std::vector<std::byte> sent(const PeerConfig& config, const std::vector<std::byte>& block) {
  const WireBlocks wire(config);
  std::vector<std::byte> bytes(wire.bytes());
  wire.put(block.data(), bytes.data());
  return bytes;
}

std::uint64_t checksum_of(const std::vector<std::byte>& block) {
  return block_checksum(block.data(), block.size());
}

TEST(WireBlocks, NativeOnesTravelAsTheyLieAtHome) {
  const PeerConfig config = config_of(KvType::kBf16, 64, kNativeWire);
  const std::vector<std::byte> block = block_of(KvType::kBf16, 64, random_numbers(64));
  EXPECT_EQ(sent(config, block), block);
  EXPECT_TRUE(WireBlocks(config).is_exact());
  std::vector<std::byte> arrived(block.size());
  EXPECT_TRUE(WireBlocks(config).take(block.data(), checksum_of(block), arrived.data()));
  EXPECT_EQ(arrived, block);
}

TEST(WireBlocks, R4IsAQuarterOfBf16AndLosesOneOrTwoHundredthsOfTheSquare) {
  for (const int head_dim : {16, 64, 80, 128}) {
    for (const KvType type : kTypes) {
      const PeerConfig config = config_of(type, head_dim);
      const WireBlocks wire(config);
      EXPECT_EQ(wire.bytes(), 8U + 16U * static_cast<unsigned>(head_dim) + 64U);
      EXPECT_FALSE(wire.is_exact());
      const std::vector<std::byte> block = block_of(type, head_dim, random_numbers(head_dim));
      const std::vector<std::byte> bytes = sent(config, block);
      std::vector<std::byte> arrived(block.size(), std::byte{0xA5});
      ASSERT_TRUE(wire.take(bytes.data(), checksum_of(block), arrived.data()));

      // The page as compressed context has it, stored as any keys and values are.
      std::vector<float> page(static_cast<std::size_t>(2 * kBlockSize * head_dim));
      decode_archive_page(head_dim, bytes.data() + 8, page.data(),
                          page.data() + kBlockSize * head_dim);
      EXPECT_EQ(arrived, block_of(type, head_dim, page));

      const std::vector<float> before = numbers_of(type, head_dim, block);
      const std::vector<float> after = numbers_of(type, head_dim, arrived);
      double lost = 0;
      double all = 0;
      for (std::size_t i = 0; i < before.size(); ++i) {
        lost += std::pow(static_cast<double>(before[i]) - static_cast<double>(after[i]), 2);
        all += std::pow(static_cast<double>(before[i]), 2);
      }
      EXPECT_GT(lost, 0);
      EXPECT_LT(lost / all, 0.02) << to_string(type) << " " << head_dim;
    }
  }
  EXPECT_LT(static_cast<double>(wire_block_bytes(config_of(KvType::kBf16, 64))) / 4096, 0.27);
}

// Key t has an 8 at coordinate t, value t is t - i at coordinate i.
TEST(WireBlocks, R4LooksAsTheFormatsPageSays) {
  std::vector<float> numbers(2 * 16 * 16);
  for (int t = 0; t < 16; ++t) {
    for (int i = 0; i < 16; ++i) {
      numbers[static_cast<std::size_t>(t * 16 + i)] = t == i ? 8.0F : 0.0F;
      numbers[static_cast<std::size_t>(256 + t * 16 + i)] = static_cast<float>(t - i);
    }
  }
  const std::vector<std::byte> bytes =
      sent(config_of(KvType::kBf16, 16), block_of(KvType::kBf16, 16, numbers));
  std::string hex;
  for (const std::byte byte : bytes) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    hex += kDigits[std::to_integer<std::size_t>(byte) / 16];
    hex += kDigits[std::to_integer<std::size_t>(byte) % 16];
  }
  EXPECT_EQ(
      hex,
      "dc96db41b4a44ae0"                                                  // checksum
      "aaaaaaaa5555aaaaa5a5a5a5a5a55a5a55aa55aaaa5555aa5aa55aa55aa5a55a"  // keys
      "aaaaaaaaaaaa5555a5a5a5a5a5a55a5a55aa55aa55aaaa555aa55aa55aa5a55a"
      "aaaaaaaa5555aaaaa5a5a5a5a5a55a5a55aa55aaaa5555aa5aa55aa55aa5a55a"
      "555555555555aaaa5a5a5a5a5a5aa5a5aa55aa55aa5555aaa55aa55aa55a5aa5"
      "7766776688998899a9bbaabb889988999a899a89779887a90020004187b988ba"  // values
      "7766776688998899776677668899889988678856779887a9eeffeeff779887a9"
      "6677667799889988bcaabbaa9988998867555655cbcccbcc95dcb8eddccddcdd"
      "6677667799889988667766779988998844333433cbcccbccdf9bce9acbcccbcc"
      "4d3f4d3f4d3f4d3f4d3f4d3f4d3f4d3f4d3f4d3f4d3f4d3f4d3f4d3f4d3f4d3f"    // scales of the keys
      "49403e4021401340f43fde3fd43fcc3fbe3fcf3fe03fdd3f0240194027403240");  // and of the values
}

TEST(WireBlocks, AFlippedBitAnywhereOrAnotherBlockIsSeenAndNothingIsWritten) {
  const PeerConfig config = config_of(KvType::kBf16, 16);
  const WireBlocks wire(config);
  const std::vector<std::byte> block = block_of(KvType::kBf16, 16, random_numbers(16));
  std::vector<std::byte> bytes = sent(config, block);
  const std::vector<std::byte> untouched(block.size(), std::byte{0xA5});
  std::vector<std::byte> arrived = untouched;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] ^= static_cast<std::byte>(1U << i % 8);
    EXPECT_FALSE(wire.take(bytes.data(), checksum_of(block), arrived.data())) << i;
    bytes[i] ^= static_cast<std::byte>(1U << i % 8);
  }
  EXPECT_FALSE(wire.take(bytes.data(), checksum_of(block) + 1, arrived.data()));
  EXPECT_EQ(arrived, untouched);
  // Bytes that a block should not have any more are not taken for it either.
  std::vector<std::byte> changed = block;
  changed[700] ^= std::byte{1};
  bytes = sent(config, changed);
  EXPECT_FALSE(wire.take(bytes.data(), checksum_of(block), arrived.data()));
  EXPECT_TRUE(wire.take(bytes.data(), checksum_of(changed), arrived.data()));
}

// Places that were never written hold whatever was there before.
TEST(WireBlocks, AnyBitsOfABlockTravel) {
  std::mt19937 random(1);
  for (const KvType type : kTypes) {
    const PeerConfig config = config_of(type, 32);
    std::vector<std::byte> block(config.block_bytes);
    for (int round = 0; round < 20; ++round) {
      for (std::byte& byte : block) {
        byte = static_cast<std::byte>(random() & 0xFFU);
      }
      std::vector<std::byte> arrived(block.size());
      const std::vector<std::byte> bytes = sent(config, block);
      EXPECT_TRUE(WireBlocks(config).take(bytes.data(), checksum_of(block), arrived.data()));
    }
  }
}

TEST(WireBlocks, WhatCannotTravelInFourBitsIsNamed) {
  struct Case {
    std::function<void(PeerConfig&)> change;
    std::string message;
  };
  for (const Case& one : {
           Case{[](auto& c) { c.wire_type = "r3"; }, "wire_type is r3, allowed are native, r4"},
           {[](auto& c) { c.block_tokens = 32; },
            "block_tokens is 32, allowed with wire_type r4 is 16"},
           {[](auto& c) { c.head_dim = 24; },
            "head_dim is 24, allowed with wire_type r4 is a multiple of 16 from 16 to 512"},
           {[](auto& c) { c.head_dim = 1024; }, "head_dim is 1024"},
           {[](auto& c) { c.head_dim = 0; }, "head_dim is 0"},
           {[](auto& c) { c.kv_type = "fp8"; }, "kv_type is fp8"},
           {[](auto& c) { c.block_bytes = 4096; },
            "block_bytes is 4096, allowed with wire_type r4 is 1024"},
       }) {
    PeerConfig config = config_of(KvType::kBf16, 16);
    EXPECT_FALSE(check_wire_type(config).has_value());
    one.change(config);
    const std::optional<Status> problem = check_wire_type(config);
    ASSERT_TRUE(problem.has_value()) << one.message;
    EXPECT_THAT(problem->message(), HasSubstr(one.message));
    EXPECT_TRUE(check_peer_config(config).has_value());
    config.wire_type = kNativeWire;
    EXPECT_FALSE(check_wire_type(config).has_value());
  }
}

}  // namespace wire_blocks_test
}  // namespace karez::test
