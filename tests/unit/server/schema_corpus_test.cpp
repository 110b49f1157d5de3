// Replays the inputs of the fuzzer, seeds and findings alike.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "support/server/read_any_schema.h"

namespace karez {
namespace {

TEST(SchemaCorpus, DoesNoHarm) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(KAREZ_FUZZ_CORPUS_DIR "/schema")) {
    SCOPED_TRACE(entry.path());
    std::ifstream stream(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
    ASSERT_EQ(bytes.size(), entry.file_size());
    test::read_any_schema(bytes);
    ++count;
  }
  EXPECT_GE(count, 5);
}

}  // namespace
}  // namespace karez
