#include "model/model_digest.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "base/hex.h"
#include "support/gguf_writer.h"

namespace karez {
namespace model_digest_test {

using test::GgufImage;
using test::GgufWriter;

constexpr std::uint32_t kF32 = 0;              // ggml's number
constexpr std::size_t kLongBytes = 40 * 4096;  // more than is read of a tensor

GgufWriter model() {
  GgufWriter writer;
  writer.set("general.architecture", "llama");
  writer.set("llama.rope.freq_base", 10000.0F);
  const std::vector<std::byte> brief(64, std::byte{1});
  const std::vector<std::byte> long_one(kLongBytes, std::byte{2});
  writer.add_tensor("short", kF32, {16}, brief);
  writer.add_tensor("long", kF32, {kLongBytes / 4}, long_one);
  return writer;
}

std::string digest_of(const GgufImage& image, const std::string& name = "a.gguf") {
  const auto file = GgufFile::parse(image.bytes, name);
  EXPECT_TRUE(file) << file.error().message();
  return to_hex(model_digest(*file));
}

std::string digest_with_byte(std::size_t from_data) {
  GgufImage image = model().build();
  image.patch(image.data + from_data, std::byte{9});
  return digest_of(image);
}

TEST(ModelDigest, IsOfTheContentAndNotOfTheName) {
  EXPECT_EQ(digest_of(model().build(), "a.gguf"), digest_of(model().build(), "b.gguf"));
}

// Another one would make everything that was stored under it unknown.
TEST(ModelDigest, StaysTheSameOverVersions) {
  EXPECT_EQ(digest_of(model().build()),
            "8d8657c246e38ac3bba69355dbaf114b7199c768e9eb6d53b7c15af11571c890");
}

TEST(ModelDigest, ChangesWithWhatItCovers) {
  const std::string before = digest_of(model().build());
  GgufWriter rope = model();
  rope.set("llama.rope.freq_base", 10001.0F);
  EXPECT_NE(digest_of(rope.build()), before);
  GgufWriter more = model();
  more.set("general.name", "x");
  EXPECT_NE(digest_of(more.build()), before);
  GgufWriter tensor = model();
  tensor.add_tensor("third", kF32, {16}, std::vector<std::byte>(64));
  EXPECT_NE(digest_of(tensor.build()), before);
  GgufImage longer = model().build();
  longer.bytes.resize(longer.bytes.size() + 32);
  EXPECT_NE(digest_of(longer), before);
  for (const std::size_t at :
       {std::size_t{0}, std::size_t{63}, std::size_t{64}, 64 + kLongBytes - 1}) {
    EXPECT_NE(digest_with_byte(at), before) << at;
  }
}

TEST(ModelDigest, ReadsAnEvenSampleOfALongTensor) {
  const std::string before = digest_of(model().build());
  EXPECT_EQ(digest_with_byte(64 + 4096 + (kLongBytes - 4096) / 15 / 2), before);
  for (std::size_t i = 0; i < 15; ++i) {
    EXPECT_NE(digest_with_byte(64 + (kLongBytes - 4096) / 15 * i), before) << i;
  }
  EXPECT_NE(digest_with_byte(64 + kLongBytes - 4096), before);
}

}  // namespace model_digest_test
}  // namespace karez
