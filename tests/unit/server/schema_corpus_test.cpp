// Replays the inputs of the fuzzer, seeds and findings alike.
#include <gtest/gtest.h>

#include <string>

#include "support/replay_corpus.h"
#include "support/server/read_any_schema.h"

namespace karez {
namespace {

TEST(SchemaCorpus, DoesNoHarm) {
  test::replay_corpus(KAREZ_FUZZ_CORPUS_DIR "/schema",
                      [](const std::string& bytes) { test::read_any_schema(bytes); });
}

}  // namespace
}  // namespace karez
