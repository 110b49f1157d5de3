#include "model/gguf_file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "support/gguf_writer.h"

namespace karez {
namespace {

using test::GgufImage;
using test::GgufWriter;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::uint32_t kF32 = 0;  // ggml type numbers
constexpr std::uint32_t kQ8_0 = 8;

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& name)
      : path_(std::filesystem::temp_directory_path() /
              ("karez_" + std::to_string(getpid()) + "_" + name)) {}
  ~TemporaryFile() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_; }

 private:
  std::filesystem::path path_;
};

GgufFile parsed(const GgufImage& image) {
  auto file = GgufFile::parse(image.bytes, "test.gguf");
  EXPECT_TRUE(file.has_value()) << (file ? "" : file.error().to_string());
  return std::move(file.value());
}

TEST(GgufFile, GivesScalarsOfEveryTypeInFileOrder) {
  GgufWriter writer;
  writer.set("u8", std::uint8_t{200});
  writer.set("i8", std::int8_t{-100});
  writer.set("u16", std::uint16_t{60000});
  writer.set("i16", std::int16_t{-30000});
  writer.set("u32", std::uint32_t{4000000000});
  writer.set("i32", std::int32_t{-2000000000});
  writer.set("u64", std::uint64_t{1} << 62);
  writer.set("i64", std::numeric_limits<std::int64_t>::min());
  writer.set("f32", 0.5F);
  writer.set("f64", 0.25);
  writer.set("bool", true);
  writer.set("string", "text");
  const GgufImage image = writer.build();
  const GgufFile file = parsed(image);

  EXPECT_EQ(file.get_int("u8").value(), 200);
  EXPECT_EQ(file.get_int("i8").value(), -100);
  EXPECT_EQ(file.get_int("u16").value(), 60000);
  EXPECT_EQ(file.get_int("i16").value(), -30000);
  EXPECT_EQ(file.get_int("u32").value(), 4000000000);
  EXPECT_EQ(file.get_int("i32").value(), -2000000000);
  EXPECT_EQ(file.get_int("u64").value(), std::int64_t{1} << 62);
  EXPECT_EQ(file.get_int("i64").value(), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(file.get_float("f32").value(), 0.5);
  EXPECT_EQ(file.get_float("f64").value(), 0.25);
  EXPECT_TRUE(file.get_bool("bool").value());
  EXPECT_EQ(file.get_string("string").value(), "text");
  EXPECT_THAT(file.keys(), ElementsAre("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f32",
                                       "f64", "bool", "string"));
  EXPECT_EQ(file.type("f64"), GgufType::kF64);
  EXPECT_TRUE(file.has("bool"));
  EXPECT_FALSE(file.has("boo"));
}

TEST(GgufFile, NamesFileKeyTypeAndAllowedTypeWhenAScalarHasAnother) {
  GgufWriter writer;
  writer.set("number", std::uint32_t{1});
  writer.set("text", "x");
  writer.set("flag", true);
  writer.set("large", std::numeric_limits<std::uint64_t>::max());
  writer.set_array("list", std::vector<float>{1});
  const GgufImage image = writer.build();
  const GgufFile file = parsed(image);

  EXPECT_EQ(file.get_int("none").error().code(), StatusCode::kNotFound);
  EXPECT_EQ(file.get_int("none").error().message(), "test.gguf: key \"none\" is missing");
  EXPECT_EQ(file.get_int("text").error().code(), StatusCode::kCorruption);
  EXPECT_EQ(file.get_int("text").error().message(),
            "test.gguf: key \"text\" has type string, allowed is an integer");
  EXPECT_THAT(file.get_int("flag").error().message(), HasSubstr("has type bool"));
  EXPECT_THAT(file.get_int("large").error().message(), HasSubstr("18446744073709551615"));
  EXPECT_THAT(file.get_float("number").error().message(), HasSubstr("allowed is f32 or f64"));
  EXPECT_THAT(file.get_bool("number").error().message(), HasSubstr("allowed is bool"));
  EXPECT_THAT(file.get_string("list").error().message(),
              AllOf(HasSubstr("array of f32"), HasSubstr("allowed is string")));
  EXPECT_THAT(file.array_info("number").error().message(), HasSubstr("allowed is an array"));
}

TEST(GgufFile, GivesArrays) {
  GgufWriter writer;
  writer.set_array("ints", std::vector<std::int16_t>{-1, 2});
  writer.set_array("flags", std::vector<bool>{true, false});
  writer.set_array("texts", std::vector<std::string>{"a", "", "long text"});
  writer.set_array("empty", std::vector<std::uint64_t>{});
  writer.set_array("large", std::vector<std::uint64_t>{std::uint64_t{1} << 63});
  const GgufImage image = writer.build();
  const GgufFile file = parsed(image);

  EXPECT_THAT(file.get_int_array("ints", 2).value(), ElementsAre(-1, 2));
  EXPECT_THAT(file.get_int_array("flags", 2).value(), ElementsAre(1, 0));
  EXPECT_THAT(file.get_string_array("texts").value(), ElementsAre("a", "", "long text"));
  EXPECT_TRUE(file.get_int_array("empty", 0).value().empty());
  EXPECT_EQ(file.array_info("texts").value().element_type, GgufType::kString);
  EXPECT_EQ(file.array_info("texts").value().length, 3U);
  EXPECT_THAT(file.get_int_array("ints", 1).error().message(),
              AllOf(HasSubstr("\"ints\" has 2 elements"), HasSubstr("at most 1")));
  EXPECT_FALSE(file.get_int_array("texts", 9).has_value());
  EXPECT_FALSE(file.get_int_array("large", 9).has_value());
  EXPECT_FALSE(file.get_string_array("ints").has_value());
}

TEST(GgufFile, PointsTensorsAtTheirBytes) {
  GgufWriter writer;
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const std::vector<std::byte> blocks(2 * 34, std::byte{7});
  writer.add_tensor("b", kF32, {3, 2}, std::as_bytes(std::span(values)));
  writer.add_tensor("a", kQ8_0, {32, 2}, blocks);
  const GgufImage image = writer.build();
  const GgufFile file = parsed(image);

  ASSERT_EQ(file.tensors().size(), 2U);
  EXPECT_EQ(file.tensors()[0].name, "b");
  const GgufTensor* b = file.find_tensor("b");
  ASSERT_NE(b, nullptr);
  EXPECT_THAT(b->shape, ElementsAre(3, 2));
  EXPECT_TRUE(std::ranges::equal(b->data, std::as_bytes(std::span(values))));
  const GgufTensor* a = file.find_tensor("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->type, kQ8_0);
  EXPECT_TRUE(std::ranges::equal(a->data, blocks));
  EXPECT_EQ(file.find_tensor("c"), nullptr);
}

TEST(GgufFile, ReadsVersion2AndOtherAlignments) {
  GgufWriter writer;
  writer.version = 2;
  writer.alignment = 64;
  writer.set("general.alignment", std::uint32_t{64});
  const std::vector<float> values = {1, 2};
  writer.add_tensor("a", kF32, {1}, std::as_bytes(std::span(values).first(1)));
  writer.add_tensor("b", kF32, {1}, std::as_bytes(std::span(values).last(1)));
  const GgufImage image = writer.build();
  const GgufFile file = parsed(image);
  EXPECT_EQ(file.version(), 2U);
  EXPECT_EQ(file.find_tensor("b")->data.data() - file.find_tensor("a")->data.data(), 64);
}

TEST(GgufFile, MapsFilesAndDropsTheirPages) {
  const TemporaryFile path("mapped.gguf");
  const std::vector<float> values(1 << 16, 0.5F);
  GgufWriter writer;
  writer.add_tensor("t", kF32, {1 << 16}, std::as_bytes(std::span(values)));
  writer.write(path.path());

  auto opened = GgufFile::open(path.path());
  ASSERT_TRUE(opened.has_value()) << opened.error().to_string();
  const GgufFile file = std::move(*opened);
  EXPECT_EQ(file.path(), path.path());
  const auto data = file.find_tensor("t")->data;
  EXPECT_TRUE(std::ranges::equal(data, std::as_bytes(std::span(values))));
  file.drop_pages(data);
  EXPECT_TRUE(std::ranges::equal(data, std::as_bytes(std::span(values))));
  file.drop_pages(data.first(10));  // less than a page
}

TEST(GgufFile, SaysWhatIsWrongWithAPathThatIsNoModel) {
  const auto missing = GgufFile::open("/does/not/exist.gguf");
  EXPECT_EQ(missing.error().code(), StatusCode::kNotFound);
  EXPECT_EQ(missing.error().message(), "/does/not/exist.gguf: no such file");

  const TemporaryFile folder("folder.gguf");
  std::filesystem::create_directory(folder.path());
  EXPECT_EQ(GgufFile::open(folder.path()).error().code(), StatusCode::kIoError);
  EXPECT_THAT(GgufFile::open(folder.path()).error().message(), HasSubstr("is a directory"));
  EXPECT_EQ(GgufFile::open(folder.path() + "/../no").error().code(), StatusCode::kNotFound);

  const TemporaryFile pipe("pipe.gguf");
  ASSERT_EQ(mkfifo(pipe.path().c_str(), 0600), 0);
  EXPECT_EQ(GgufFile::open(pipe.path()).error().code(), StatusCode::kIoError);  // and does not wait

  const TemporaryFile empty("empty.gguf");
  test::write_file(empty.path(), {});
  EXPECT_EQ(GgufFile::open(empty.path()).error().code(), StatusCode::kCorruption);
  EXPECT_THAT(GgufFile::open(empty.path()).error().message(), HasSubstr("the file is empty"));
}

TEST(GgufFile, SaysThatAFileMayNotBeRead) {
  if (geteuid() == 0) {
    // The superuser may read everything: take the right away for this call.
    ASSERT_EQ(seteuid(65534), 0);
  }
  const TemporaryFile path("secret.gguf");
  GgufWriter().write(path.path());
  ASSERT_EQ(chmod(path.path().c_str(), 0), 0);
  const auto file = GgufFile::open(path.path());
  if (getuid() == 0) {
    ASSERT_EQ(seteuid(0), 0);
  }
  ASSERT_FALSE(file.has_value());
  EXPECT_EQ(file.error().code(), StatusCode::kIoError);
  EXPECT_THAT(file.error().message(), HasSubstr("cannot be opened: Permission denied"));
}

}  // namespace
}  // namespace karez
