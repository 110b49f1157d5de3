// Replays the inputs of the fuzzer, seeds and findings alike.
#include <gtest/gtest.h>

#include <string>

#include "support/read_any_grammar.h"
#include "support/replay_corpus.h"

namespace karez {
namespace {

TEST(GrammarCorpus, DoesNoHarm) {
  test::replay_corpus(KAREZ_FUZZ_CORPUS_DIR "/grammar",
                      [](const std::string& bytes) { test::read_any_grammar(bytes); });
}

}  // namespace
}  // namespace karez
