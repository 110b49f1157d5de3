// Replays the inputs of the fuzzer, seeds and findings alike.
#include <gtest/gtest.h>

#include <string>

#include "support/replay_corpus.h"
#include "support/server/read_any_request.h"

namespace karez {
namespace {

TEST(RequestCorpus, DoesNoHarm) {
  test::replay_corpus(KAREZ_FUZZ_CORPUS_DIR "/request",
                      [](const std::string& bytes) { test::read_any_request(bytes); });
}

}  // namespace
}  // namespace karez
