// Malformed files: one message that names file, place and value, and no memory.
//
// This program counts what operator new hands out, so a test can say that a lying length in a file
// of some hundred bytes costs no more than the file itself would.
#include <gmock/gmock.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <new>

#include "model/gguf_file.h"
#include "support/gguf_writer.h"
#include "support/random_model.h"

namespace {

thread_local std::size_t allocated_bytes = 0;  // ever, by this thread

}  // namespace

void* operator new(std::size_t size) {
  allocated_bytes += size;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) {
    return memory;
  }
  throw std::bad_alloc();
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  allocated_bytes += size;
  return std::malloc(size == 0 ? 1 : size);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace karez {
namespace gguf_malformed_test {

using test::GgufImage;
using test::GgufWriter;
using testing::HasSubstr;

constexpr std::uint32_t kF32 = 0;  // ggml type numbers
constexpr std::uint32_t kQ8_0 = 8;

// A small file with a key of each kind and two tensors.
GgufWriter small_file() {
  GgufWriter writer;
  writer.set("number", std::uint32_t{1});
  writer.set("text", "some text");
  writer.set("flag", true);
  writer.set_array("ints", std::vector<std::int32_t>{1, 2, 3});
  writer.set_array("texts", std::vector<std::string>{"a", "b"});
  const std::vector<float> values(64, 1.0F);
  writer.add_tensor("first", kF32, {32, 2}, std::as_bytes(std::span(values)));
  const std::vector<std::byte> blocks(34);
  writer.add_tensor("second", kQ8_0, {32}, blocks);
  return writer;
}

Expected<GgufFile> parse_copy(std::span<const std::byte> bytes) {
  // A buffer of exactly this size, so that AddressSanitizer sees every read behind it.
  static thread_local std::unique_ptr<std::byte[]> buffer;
  buffer = std::make_unique<std::byte[]>(bytes.size());
  std::ranges::copy(bytes, buffer.get());
  const std::size_t before = allocated_bytes;
  auto file = GgufFile::parse({buffer.get(), bytes.size()}, "bad.gguf");
  const std::size_t cost = allocated_bytes - before;
  EXPECT_LE(cost, 8192 + 16 * bytes.size()) << "parsing " << bytes.size() << " bytes";
  return file;
}

struct Damage {
  std::string name;
  std::function<void(GgufImage&)> apply;
  std::vector<std::string> message;  // parts of it
  StatusCode code = StatusCode::kCorruption;
};

void expect_refused(const Damage& damage, GgufImage image) {
  SCOPED_TRACE(damage.name);
  damage.apply(image);
  const auto file = parse_copy(image.bytes);
  ASSERT_FALSE(file.has_value());
  EXPECT_EQ(file.error().code(), damage.code);
  EXPECT_THAT(file.error().message(), testing::StartsWith("bad.gguf: "));
  EXPECT_EQ(file.error().message().find('\n'), std::string::npos);
  for (const std::string& part : damage.message) {
    EXPECT_THAT(file.error().message(), HasSubstr(part));
  }
}

constexpr std::uint64_t kHuge = std::uint64_t{1} << 60;

TEST(GgufMalformed, HeaderIsChecked) {
  const std::vector<Damage> damages = {
      {"no bytes", [](GgufImage& i) { i.bytes.clear(); }, {"the file is empty"}},
      {"four bytes", [](GgufImage& i) { i.bytes.resize(4); }, {"ends within the GGUF header"}},
      {"two bytes", [](GgufImage& i) { i.bytes.resize(2); }, {"not a GGUF file"}},
      {"another magic", [](GgufImage& i) { i.patch(0, 0x0A0D0A0DU); }, {"\\x0D\\x0A"}},
      {"version 1",
       [](GgufImage& i) { i.patch(GgufImage::kVersion, 1U); },
       {"version 1;", "2 and 3"},
       StatusCode::kUnimplemented},
      {"version 4",
       [](GgufImage& i) { i.patch(GgufImage::kVersion, 4U); },
       {"version 4;"},
       StatusCode::kUnimplemented},
      {"big-endian",
       [](GgufImage& i) { i.patch(GgufImage::kVersion, 0x03000000U); },
       {"big-endian"},
       StatusCode::kUnimplemented},
      {"2^60 tensors",
       [](GgufImage& i) { i.patch(GgufImage::kTensorCount, kHuge); },
       {"tensor count is 1152921504606846976"}},
      {"2^60 keys",
       [](GgufImage& i) { i.patch(GgufImage::kKeyCount, kHuge); },
       {"key count is 1152921504606846976"}},
      {"all ones",
       [](GgufImage& i) { i.patch(GgufImage::kTensorCount, ~std::uint64_t{0}); },
       {"18446744073709551615"}},
      {"one key more",
       [](GgufImage& i) { i.patch(GgufImage::kKeyCount, std::uint64_t{6}); },
       {"the name of tensor 0"}},
  };
  for (const Damage& damage : damages) {
    expect_refused(damage, small_file().build());
  }
}

TEST(GgufMalformed, KeysAreChecked) {
  const std::vector<Damage> damages = {
      {"key name of 2^63 bytes",
       [](GgufImage& i) { i.patch(i.keys["text"].entry, std::uint64_t{1} << 63); },
       {"name of key 1", "9223372036854775808", "bytes of the file remain"}},
      {"empty key",
       [](GgufImage& i) { i.patch(i.keys["text"].entry, std::uint64_t{0}); },
       {"key 1", "0 bytes", "1 to 65535"}},
      {"string of 2^63 bytes",
       [](GgufImage& i) { i.patch(i.keys["text"].value, std::uint64_t{1} << 63); },
       {"key \"text\"", "9223372036854775808"}},
      {"unknown type",
       [](GgufImage& i) { i.patch(i.keys["number"].type, 13U); },
       {"key \"number\"", "type number 13", "0 to 12"}},
      {"unknown element type",
       [](GgufImage& i) { i.patch(i.keys["ints"].value, 99U); },
       {"key \"ints\"", "99", "0 to 12"}},
      {"array of arrays",
       [](GgufImage& i) { i.patch(i.keys["ints"].value, 9U); },
       {"key \"ints\"", "array of arrays"}},
      {"array of 2^60 integers",
       [](GgufImage& i) { i.patch(i.keys["ints"].value + 4, kHuge); },
       {"key \"ints\"", "1152921504606846976 element(s) of type i32"}},
      {"array of 2^62 integers, whose bytes overflow",
       [](GgufImage& i) { i.patch(i.keys["ints"].value + 4, (std::uint64_t{1} << 62) + 1); },
       {"key \"ints\"", "4611686018427387905"}},
      {"array of 2^60 texts",
       [](GgufImage& i) { i.patch(i.keys["texts"].value + 4, kHuge); },
       {"key \"texts\"", "1152921504606846976 element(s) of type string"}},
      {"text of 2^63 bytes in an array",
       [](GgufImage& i) { i.patch(i.keys["texts"].value + 12, std::uint64_t{1} << 63); },
       {"key \"texts\"[0]", "9223372036854775808"}},
      {"bool 2",
       [](GgufImage& i) { i.patch(i.keys["flag"].value, std::uint8_t{2}); },
       {"key \"flag\"", "a bool is 2", "0 and 1"}},
      {"key twice",
       [](GgufImage& i) { std::memcpy(i.bytes.data() + i.keys["text"].entry + 8, "flag", 4); },
       {"key \"flag\" is there twice"}},
  };
  for (const Damage& damage : damages) {
    expect_refused(damage, small_file().build());
  }
}

TEST(GgufMalformed, KeyNamesHaveALimitOf65535Bytes) {
  GgufWriter writer;
  writer.set(std::string(65535, 'k'), 1.0F);
  EXPECT_TRUE(parse_copy(writer.build().bytes).has_value());
  writer.set(std::string(65536, 'k'), 1.0F);
  const auto file = parse_copy(writer.build().bytes);
  ASSERT_FALSE(file.has_value());
  EXPECT_THAT(file.error().message(), HasSubstr("65536 bytes"));
}

TEST(GgufMalformed, UnprintableNamesAreEscapedAndCutInMessages) {
  GgufWriter writer;
  writer.set("bad\n\x1b[31m\xff" + std::string(200, 'x'), true);
  GgufImage image = writer.build();
  image.patch(image.keys.begin()->second.value, std::uint8_t{9});
  const auto file = parse_copy(image.bytes);
  ASSERT_FALSE(file.has_value());
  EXPECT_THAT(file.error().message(), HasSubstr("\"bad\\x0A\\x1B[31m\\xFFxxx"));
  EXPECT_LT(file.error().message().size(), 200U);
}

TEST(GgufMalformed, TensorsAreChecked) {
  const std::uint64_t overflow = (std::uint64_t{1} << 42) + 1;
  const std::vector<Damage> damages = {
      {"name of 64 bytes",
       [](GgufImage& i) { i.patch(i.tensors["first"].entry, std::uint64_t{64}); },
       {"tensor 0", "64 bytes", "1 to 63"}},
      {"name of 2^63 bytes",
       [](GgufImage& i) { i.patch(i.tensors["second"].entry, std::uint64_t{1} << 63); },
       {"name of tensor 1", "9223372036854775808"}},
      {"no dimensions",
       [](GgufImage& i) { i.patch(i.tensors["first"].num_dims, 0U); },
       {"tensor \"first\"", "0 dimensions", "1 to 4"}},
      {"5 dimensions",
       [](GgufImage& i) { i.patch(i.tensors["first"].num_dims, 5U); },
       {"tensor \"first\"", "5 dimensions", "1 to 4"}},
      {"2^32 - 1 dimensions",
       [](GgufImage& i) { i.patch(i.tensors["first"].num_dims, ~0U); },
       {"tensor \"first\"", "4294967295 dimensions"}},
      {"dimension 0",
       [](GgufImage& i) { i.patch(i.tensors["first"].dims + 8, std::uint64_t{0}); },
       {"tensor \"first\"", "dimension 1 is 0"}},
      {"dimension 2^42 + 1",
       [=](GgufImage& i) { i.patch(i.tensors["first"].dims + 8, overflow); },
       {"tensor \"first\"", "140737488355360 elements of type f32", "more than the file's"}},
      {"dimension product over 2^63",
       [](GgufImage& i) { i.patch(i.tensors["first"].dims + 8, std::uint64_t{1} << 62); },
       {"tensor \"first\"", "dimension 1 is 4611686018427387904"}},
      {"negative dimension",
       [](GgufImage& i) { i.patch(i.tensors["first"].dims, ~std::uint64_t{0}); },
       {"tensor \"first\"", "dimension 0 is 18446744073709551615"}},
      {"part of a block",
       [](GgufImage& i) { i.patch(i.tensors["second"].dims, std::uint64_t{33}); },
       {"tensor \"second\"", "33", "q8_0", "multiples of 32"}},
      {"unknown type",
       [](GgufImage& i) { i.patch(i.tensors["first"].type, 1000U); },
       {"tensor \"first\"", "type number 1000"}},
      {"negative type",
       [](GgufImage& i) { i.patch(i.tensors["first"].type, ~0U); },
       {"tensor \"first\"", "type number 4294967295"}},
      {"removed type q4_2",
       [](GgufImage& i) { i.patch(i.tensors["first"].type, 4U); },
       {"tensor \"first\"", "type number 4,"}},
      {"offset between multiples",
       [](GgufImage& i) { i.patch(i.tensors["second"].offset, std::uint64_t{257}); },
       {"tensor \"second\"", "257", "multiples of 32"}},
      {"offset past the end",
       [](GgufImage& i) { i.patch(i.tensors["second"].offset, std::uint64_t{1} << 40); },
       {"tensor \"second\"", "offset 1099511627776", "end past"}},
      {"offset near 2^64",
       [](GgufImage& i) { i.patch(i.tensors["second"].offset, ~std::uint64_t{31}); },
       {"tensor \"second\"", "18446744073709551584"}},
      {"end past the end",
       [](GgufImage& i) { i.patch(i.tensors["first"].offset, std::uint64_t{96}); },
       {"tensor \"first\"", "256 bytes", "offset 96"}},
      {"overlap",
       [](GgufImage& i) { i.patch(i.tensors["second"].offset, std::uint64_t{224}); },
       {"tensor \"second\" (offset 224) overlaps tensor \"first\""}},
      {"same place",
       [](GgufImage& i) { i.patch(i.tensors["second"].offset, std::uint64_t{0}); },
       {"overlaps"}},
  };
  for (const Damage& damage : damages) {
    expect_refused(damage, small_file().build());
  }
}

TEST(GgufMalformed, TensorNamesAreUnique) {
  GgufWriter writer;
  const std::vector<float> value = {1};
  writer.add_tensor("one", kF32, {1}, std::as_bytes(std::span(value)));
  writer.add_tensor("two", kF32, {1}, std::as_bytes(std::span(value)));
  expect_refused(
      {"twin",
       [](GgufImage& i) { std::memcpy(i.bytes.data() + i.tensors["two"].entry + 8, "one", 3); },
       {"tensor \"one\" is there twice"}},
      writer.build());
}

TEST(GgufMalformed, AlignmentIsChecked) {
  const std::vector<std::pair<std::uint32_t, std::string>> values = {
      {0, "is 0, allowed are powers of two from 8"},
      {3, "is 3, allowed"},
      {4, "is 4, allowed"},
      {0x80000000U, "tensor data starts at byte 2147483648"}};
  for (const auto& [value, message] : values) {
    GgufWriter writer = small_file();
    writer.set("general.alignment", value);
    expect_refused({"alignment", [](GgufImage&) {}, {message}}, writer.build());
  }
  GgufWriter writer = small_file();
  writer.set("general.alignment", std::uint64_t{32});
  expect_refused({"type", [](GgufImage&) {}, {"general.alignment", "type u64", "allowed is u32"}},
                 writer.build());
}

TEST(GgufMalformed, ATruncatedModelIsRefusedAtEachKibibyteAndEachByteOfItsHead) {
  const GgufImage image = test::random_model({}).build();
  ASSERT_TRUE(parse_copy(image.bytes).has_value());
  std::vector<std::size_t> sizes;
  for (std::size_t size = 0; size < image.data; size += size < 2048 ? 1 : 7) {
    sizes.push_back(size);
  }
  for (std::size_t size = image.data; size < image.bytes.size(); size += 1024) {
    sizes.push_back(size);
  }
  for (const std::size_t size : sizes) {
    SCOPED_TRACE(size);
    const auto file = parse_copy(std::span(image.bytes).first(size));
    ASSERT_FALSE(file.has_value());
    EXPECT_EQ(file.error().code(), StatusCode::kCorruption);
  }
}

TEST(GgufMalformed, NoChangeOfASingleByteOfTheHeadDoesHarm) {
  const GgufImage image = small_file().build();
  for (std::size_t at = 0; at < image.data; ++at) {
    for (const std::uint8_t value : {0x00, 0x01, 0x7F, 0x80, 0xFF}) {
      GgufImage changed = image;
      changed.patch(at, value);
      const auto file = parse_copy(changed.bytes);
      if (!file) {
        EXPECT_THAT(file.error().message(), testing::StartsWith("bad.gguf: "));
      }
    }
  }
}

}  // namespace gguf_malformed_test
}  // namespace karez
