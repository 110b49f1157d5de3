// Replays the inputs of the fuzzer, seeds and findings alike.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <vector>

#include "support/read_any_file.h"

namespace karez {
namespace {

TEST(GgufCorpus, HoldsModelsAndDamagedFilesAndNoneDoesHarm) {
  int models = 0;
  int damaged = 0;
  for (const auto& entry : std::filesystem::directory_iterator(KAREZ_FUZZ_CORPUS_DIR "/gguf")) {
    SCOPED_TRACE(entry.path());
    std::ifstream stream(entry.path(), std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(stream), {}};
    ASSERT_EQ(bytes.size(), entry.file_size());
    (test::read_any_file(std::as_bytes(std::span(bytes))) ? models : damaged) += 1;
  }
  EXPECT_GE(models, 4);  // one of each architecture
  EXPECT_GE(damaged, 1);
}

}  // namespace
}  // namespace karez
