#include "engine/transfer_note.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace karez {
namespace transfer_note_test {

const std::vector<float> kLogits = {1.5F, -2.0F, 0.25F};
const std::vector<std::uint32_t> kPlaces = {7, 0, 4'000'000'000};

TEST(TransferNote, IsTheLogitsAndThePlacesAsTheyLie) {
  const std::vector<std::byte> note = encode_transfer_note(kLogits, kPlaces, 24);
  ASSERT_EQ(note.size(), 24U);
  EXPECT_EQ(note[12], std::byte{7});
  EXPECT_EQ(note[23], std::byte{0xEE});  // 4,000,000,000 is 0xEE6B2800
  const TransferNote decoded = decode_transfer_note(note, 3);
  EXPECT_EQ(decoded.logits, kLogits);
  EXPECT_EQ(decoded.working_set, kPlaces);
}

TEST(TransferNote, ThePlacesAreLeftOutWhereTheyDoNotFit) {
  const std::vector<std::byte> note = encode_transfer_note(kLogits, kPlaces, 23);
  EXPECT_EQ(note.size(), 12U);
  const TransferNote decoded = decode_transfer_note(note, 3);
  EXPECT_EQ(decoded.logits, kLogits);
  EXPECT_TRUE(decoded.working_set.empty());
}

TEST(TransferNote, OfAnotherLengthIsOfAnotherKind) {
  const std::vector<std::byte> note = encode_transfer_note(kLogits, kPlaces, 24);
  for (std::size_t size = 0; size <= note.size(); ++size) {
    const TransferNote decoded = decode_transfer_note(std::span(note).first(size), 3);
    const bool is_whole = size >= 12 && size % 4 == 0;
    EXPECT_EQ(decoded.logits.empty(), !is_whole) << size;
    EXPECT_EQ(decoded.working_set.size(), is_whole ? (size - 12) / 4 : 0) << size;
  }
  EXPECT_TRUE(decode_transfer_note(note, 0).working_set.empty());
  EXPECT_TRUE(decode_transfer_note(note, 7).logits.empty());
}

}  // namespace transfer_note_test
}  // namespace karez
