// Replays the inputs of the fuzzer, seeds and findings alike.
#include <gtest/gtest.h>

#include <set>
#include <span>
#include <string>

#include "support/replay_corpus.h"
#include "support/store/read_any_record.h"

namespace karez::test {
namespace record_corpus_test {

TEST(RecordCorpus, ReachesTheChecksAndDoesNoHarm) {
  std::set<RecordProblem> seen;
  replay_corpus(KAREZ_FUZZ_CORPUS_DIR "/record", [&](const std::string& bytes) {
    seen.insert(read_any_record(std::as_bytes(std::span(bytes))));
  });
  for (const RecordProblem problem :
       {RecordProblem::kNone, RecordProblem::kLength, RecordProblem::kHeaderChecksum,
        RecordProblem::kVersion, RecordProblem::kContent, RecordProblem::kPayloadChecksum}) {
    EXPECT_TRUE(seen.contains(problem)) << to_string(problem);
  }
}

}  // namespace record_corpus_test
}  // namespace karez::test
