// Compression together with everything else that an engine does, in one matrix: company, small
// pools, drafts, aborts, forks, tiers, archives. However a request was run, its answer is the one
// that it has alone.
#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "support/compressing_engine.h"

namespace karez::test {
namespace engine_compress_matrix_test {

using Drafts = CompressingEngine::Drafts;

struct Variant {
  std::string name;
  int num_slots = 3000;  // CompressingEngine::kWithRoom
  int batched_tokens = 64;
  int per_step = 1;
  int max_num_seqs = 64;
  int home_slots = 0;
  bool throttled = false;
  int floor_tokens = 0;
  Drafts drafts = Drafts::kNone;
  bool aborts = false;
  bool prefix_cache = true;
  CompressArchive archive = CompressArchive::kOff;
  CompressScore score = CompressScore::kRandom;
};

void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

class EngineCompress : public CompressingEngine, public testing::WithParamInterface<Variant> {};

TEST_P(EngineCompress, AnswersAreThoseOfTheRequestAlone) {
  const Variant& variant = GetParam();
  const std::vector<Request> requests = many_requests();
  options_.compression.archive = variant.archive;
  options_.compression.score = variant.score;
  if (variant.score != CompressScore::kRandom) {
    options_.compression.chunk = CompressChunk::kNone;  // each pair for itself
  }
  if (variant.num_slots < 200 && variant.home_slots == 0) {
    options_.compression.recent_tokens = 0;  // then no window is ever compressed earlier
  }
  const Answers& wanted = answers_of_many();
  options_.prefix_cache = variant.prefix_cache;
  options_.scheduler.max_num_batched_tokens = variant.batched_tokens;
  options_.scheduler.max_num_seqs = variant.max_num_seqs;
  options_.scheduler.decode_floor_tokens = variant.floor_tokens;
  options_.compression.sequences_per_step = variant.per_step;
  start(variant.num_slots,
        variant.home_slots == 0 ? nullptr : host_tier(variant.home_slots, variant.throttled),
        speculation(variant.drafts, requests, wanted));
  expect_same(run(requests, variant.aborts), wanted);
  expect_same(run(requests), wanted);  // with prefix hits
  const EngineStats stats = engine_->stats();
  EXPECT_EQ(stats.slots_used, 0);
  EXPECT_EQ(stats.compression.query_bytes, 0) << "nothing is kept for those that have ended";
  EXPECT_GT(stats.compression.windows, 0);
  // All are above a floor of 48 tokens soon, and who has started goes on.
  if (variant.num_slots < 200 && variant.floor_tokens != 48) {
    EXPECT_GT(stats.preemptions, 0);
  }
  if (variant.home_slots > 0) {
    EXPECT_EQ(stats.demotions > 0, variant.floor_tokens != 48);
    EXPECT_GT(stats.tiers.evictions, 100);
  }
  if (variant.drafts == Drafts::kRight) {
    EXPECT_GT(stats.speculation.accepted_tokens, 500);
  }
  if (variant.prefix_cache) {
    EXPECT_GT(stats.prefix_cache_hits_tokens, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Company, EngineCompress,
    testing::Values(
        Variant{.name = "Batch"}, Variant{.name = "NoPrefixCache", .prefix_cache = false},
        Variant{.name = "ThreeInAStep", .per_step = 3},
        Variant{.name = "AllInAStep", .per_step = 100},
        Variant{.name = "TinySteps", .batched_tokens = 5},
        Variant{.name = "LargeSteps", .batched_tokens = 1000, .per_step = 2},
        Variant{.name = "TwoAtATime", .max_num_seqs = 2}, Variant{.name = "Aborts", .aborts = true},
        Variant{.name = "SmallPool", .num_slots = 110},
        Variant{.name = "SmallPoolTinySteps", .num_slots = 100, .batched_tokens = 9, .per_step = 4},
        Variant{.name = "SmallPoolAborts", .num_slots = 120, .per_step = 2, .aborts = true},
        Variant{.name = "SmallPoolNoPrefixCache", .num_slots = 110, .prefix_cache = false},
        Variant{.name = "RightDrafts", .drafts = Drafts::kRight},
        Variant{.name = "WrongDrafts", .drafts = Drafts::kWrong},
        Variant{.name = "MixedDrafts", .batched_tokens = 24, .drafts = Drafts::kMixed},
        Variant{.name = "NgramDrafts", .per_step = 2, .drafts = Drafts::kNgram},
        Variant{.name = "SmallPoolDrafts", .num_slots = 110, .drafts = Drafts::kMixed},
        Variant{.name = "ArchiveBatch", .per_step = 3, .archive = CompressArchive::kR4},
        Variant{.name = "ArchiveSmallPool", .num_slots = 130, .archive = CompressArchive::kR4},
        Variant{.name = "ArchiveDraftsAborts",
                .batched_tokens = 24,
                .drafts = Drafts::kMixed,
                .aborts = true,
                .archive = CompressArchive::kR4}),
    [](const auto& variant) { return variant.param.name; });

// What is kept hangs on the queries of rows: those of drafts that were wrong, of sequences that are
// computed again, and of others must not count.
INSTANTIATE_TEST_SUITE_P(Queries, EngineCompress,
                         testing::Values(Variant{.name = "MixedDrafts",
                                                 .batched_tokens = 24,
                                                 .per_step = 2,
                                                 .drafts = Drafts::kMixed,
                                                 .score = CompressScore::kBidirectional},
                                         Variant{.name = "Aborts",
                                                 .per_step = 2,
                                                 .aborts = true,
                                                 .score = CompressScore::kBidirectional},
                                         Variant{.name = "SmallPoolDraftsAborts",
                                                 .num_slots = 120,
                                                 .drafts = Drafts::kMixed,
                                                 .aborts = true,
                                                 .score = CompressScore::kBidirectional}),
                         [](const auto& variant) { return variant.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Tiers, EngineCompress,
    testing::Values(Variant{.name = "Host", .num_slots = 140, .home_slots = 3000},
                    Variant{.name = "HostSmallFloors",
                            .num_slots = 115,
                            .home_slots = 3000,
                            .floor_tokens = 48},
                    Variant{.name = "HostArchive",
                            .num_slots = 160,
                            .home_slots = 3000,
                            .archive = CompressArchive::kR4},
                    Variant{.name = "HostFull", .num_slots = 140, .home_slots = 260},
                    Variant{.name = "Throttled",
                            .num_slots = 140,
                            .per_step = 2,
                            .home_slots = 3000,
                            .throttled = true,
                            .floor_tokens = 96},
                    Variant{.name = "HostDraftsAborts",
                            .num_slots = 160,
                            .per_step = 2,
                            .home_slots = 3000,
                            .floor_tokens = 64,
                            .drafts = Drafts::kMixed,
                            .aborts = true},
                    Variant{.name = "HostArchiveDrafts",
                            .num_slots = 140,
                            .per_step = 2,
                            .home_slots = 3000,
                            .floor_tokens = 64,
                            .drafts = Drafts::kMixed,
                            .archive = CompressArchive::kR4,
                            .score = CompressScore::kBidirectional}),
    [](const auto& variant) { return variant.param.name; });

class EngineCompressForks : public CompressingEngine {};

// The choices of a request share its prompt, whose queries choose what is kept of its last windows.
TEST_F(EngineCompressForks, ChoicesHaveTheQueriesOfTheirPrompt) {
  options_.compression.compresses_prompt = true;
  options_.compression.chunk = CompressChunk::kNone;
  options_.compression.score = CompressScore::kBidirectional;
  for (const CompressArchive archive : {CompressArchive::kOff, CompressArchive::kR4}) {
    options_.compression.archive = archive;
    // A window of positions 80 to 144, which is scored with the queries before 160.
    const Answer one = run_alone({request(150, 120, 3)}).at({0, 0});
    ASSERT_EQ(one.tokens.size(), 120U);
    for (const auto& [key, choice] : run_alone({request(150, 120, 3, 3)})) {
      EXPECT_EQ(choice.tokens, one.tokens) << key.second;
    }
    options_.compression.score = CompressScore::kRandom;
    EXPECT_NE(run_alone({request(150, 120, 3)}).at({0, 0}).tokens, one.tokens)
        << "queries make a difference";
    options_.compression.score = CompressScore::kBidirectional;
  }
}

}  // namespace engine_compress_matrix_test
}  // namespace karez::test
