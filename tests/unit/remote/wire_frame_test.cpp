#include "remote/wire_frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/remote/any_message.h"
#include "support/replay_corpus.h"

namespace karez {
namespace wire_frame_test {

using testing::HasSubstr;

std::vector<std::byte> release_frame() {
  return WireWriter(WireType::kRelease, 0x1122334455667788).put(std::uint64_t{42}).finish();
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    text += kDigits[std::to_integer<std::size_t>(byte) / 16];
    text += kDigits[std::to_integer<std::size_t>(byte) % 16];
  }
  return text;
}

std::string error_of(std::span<const std::byte> bytes) {
  const Expected<WireFrame> frame = read_frame(bytes);
  return frame ? "" : frame.error().to_string();
}

TEST(WireFrame, LooksAsTheFormatsPageSays) {
  EXPECT_EQ(hex(release_frame()),
            "4b525a57"          // magic
            "0100"              // version
            "0c00"              // type
            "08000000"          // body bytes
            "00000000"          // zero
            "8877665544332211"  // request
            "e181e748d47b352d"  // checksum
            "2a00000000000000");
}

TEST(WireFrame, IsReadBack) {
  const std::vector<std::byte> bytes = release_frame();
  const Expected<WireFrame> frame = read_frame(bytes);
  ASSERT_TRUE(frame.has_value()) << frame.error().to_string();
  EXPECT_EQ(frame->type, WireType::kRelease);
  EXPECT_EQ(frame->request, 0x1122334455667788U);
  EXPECT_EQ(WireReader(frame->body).get<std::uint64_t>(), 42U);
}

TEST(WireFrame, AnyFlippedBitIsNoticed) {
  const std::vector<std::byte> sound = release_frame();
  for (std::size_t bit = 0; bit < sound.size() * 8; ++bit) {
    std::vector<std::byte> bytes = sound;
    bytes[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    EXPECT_FALSE(read_frame(bytes).has_value()) << bit;
  }
}

TEST(WireFrame, AnyOtherLengthIsNoticed) {
  const std::vector<std::byte> sound = release_frame();
  for (std::size_t size = 0; size < sound.size(); ++size) {
    EXPECT_FALSE(read_frame(std::span(sound).first(size)).has_value()) << size;
  }
  std::vector<std::byte> longer = sound;
  longer.push_back(std::byte{0});
  EXPECT_THAT(error_of(longer), HasSubstr("its body has 8 bytes, 9 came"));
}

TEST(WireFrame, ALengthOfFourGigabytesIsAnErrorAndNoAllocation) {
  std::vector<std::byte> bytes = release_frame();
  std::fill_n(bytes.begin() + 8, 4, std::byte{0xFF});
  EXPECT_THAT(error_of(bytes), HasSubstr("its body has 4294967295 bytes, 8 came"));
}

TEST(WireFrame, AnotherVersionIsNamedWithOurs) {
  std::vector<std::byte> bytes = release_frame();
  bytes[4] = std::byte{0};
  EXPECT_EQ(error_of(bytes),
            "invalid argument: peers do not fit: the wire version is 1 here and 0 there");
}

TEST(WireFrame, AReaderThatIsPastTheEndStaysBad) {
  const std::vector<std::byte> bytes(4);
  WireReader reader(bytes);
  EXPECT_EQ(reader.get<std::uint64_t>(), 0U);
  EXPECT_FALSE(reader.is_good());
  EXPECT_EQ(reader.get<std::uint32_t>(), 0U);
  EXPECT_FALSE(reader.is_at_good_end());
}

TEST(WireFrame, SizedBytesHaveALimit) {
  const std::vector<std::byte> body = {std::byte{3}, std::byte{0}, std::byte{0}, std::byte{0},
                                       std::byte{1}, std::byte{2}, std::byte{3}};
  EXPECT_EQ(WireReader(body).get_sized(3).size(), 3U);
  WireReader limited(body);
  EXPECT_TRUE(limited.get_sized(2).empty());
  EXPECT_FALSE(limited.is_good());
}

TEST(WireFrame, FindingsOfTheFuzzerStayFixed) {
  test::replay_corpus(KAREZ_FUZZ_CORPUS_DIR "/wire", [](const std::string& bytes) {
    test::read_any_message(std::as_bytes(std::span(bytes)));
  });
}

}  // namespace wire_frame_test
}  // namespace karez
