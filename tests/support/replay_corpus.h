// Replays the inputs of a fuzzer, seeds and findings alike.
//
// Thread: no state.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace karez::test {

// Calls read(bytes) with each file of the folder, of which there must be 5 at least.
template <typename Read>
void replay_corpus(const char* folder, Read read) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    SCOPED_TRACE(entry.path());
    std::ifstream stream(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
    ASSERT_EQ(bytes.size(), entry.file_size());
    read(bytes);
    ++count;
  }
  EXPECT_GE(count, 5);
}

}  // namespace karez::test
