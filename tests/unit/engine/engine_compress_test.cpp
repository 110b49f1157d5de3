// Compression of aged windows in the engine: what a request answers depends on the request alone.
// The fake runner's tokens are a hash of all pairs that a row may see, at the places where they
// are, so one pair that is kept or dropped otherwise, too early or too late, changes every token
// after it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "kv/tier/host_tier.h"
#include "kv/tier/throttled_tier.h"
#include "spec/ngram_proposer.h"
#include "support/fake_draft_proposer.h"
#include "support/fake_vocabulary.h"
#include "support/paged_fake_runner.h"
#include "support/tier/faulty_tier.h"

namespace karez::test {
namespace engine_compress_test {

using ::testing::HasSubstr;

constexpr int kVocabSize = 40;
constexpr int kWithRoom = 3000;  // slots; invariants are checked over all of them
constexpr int kFullLayers = 3;

// One layer with a window among layers without: two groups of blocks.
KVCacheSpec spec() { return PagedFakeRunner::kv_spec({0, 40, 0, 0}); }

struct Answer {
  std::vector<TokenId> tokens;
  GenerationEvent last;
};
using Answers = std::map<std::pair<std::size_t, int>, Answer>;  // by request and choice

Request request(int prompt_tokens, int max_tokens, TokenId first, int num_choices = 1) {
  Request request;
  for (int i = 0; i < prompt_tokens; ++i) {
    request.prompt.push_back((first + i * 7 + i / 11) % kVocabSize);
  }
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  request.num_choices = num_choices;
  return request;
}

// Short and long ones, some of several choices, with equal prompts, options of their own, or
// without compression.
std::vector<Request> many_requests() {
  std::vector<Request> requests;
  for (int i = 0; i < 9; ++i) {
    requests.push_back(request(1 + i * 13, 150 + i * 17 % 90, 1 + i % 5, i % 4 == 3 ? 2 : 1));
  }
  requests[2].kv_compression.enabled = false;
  requests[4].kv_compression.keep = 0.25;
  requests[5].kv_compression.window_tokens = 32;
  requests[6].ignore_eos = false;
  requests.push_back(requests[8]);
  return requests;
}

enum class Drafts { kNone, kRight, kWrong, kMixed, kNgram };

struct Variant {
  std::string name;
  int num_slots = kWithRoom;
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
};

void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

class EngineCompress : public testing::TestWithParam<Variant> {
 protected:
  EngineCompress() {
    options_.context_tokens = 2000;
    options_.scheduler.max_num_batched_tokens = 64;
    options_.compress = true;
    options_.compression.window_tokens = 64;
    options_.compression.recent_tokens = 32;
    options_.compression.score = CompressScore::kRandom;
    options_.compression.archive = CompressArchive::kOff;
  }

  void start(std::int64_t num_slots, std::unique_ptr<Tier> home = nullptr,
             std::unique_ptr<Speculation> speculation = nullptr) {
    engine_.reset();
    const auto cap = static_cast<std::int64_t>(spec().slot_bytes()) * num_slots;
    auto kv = KVCacheManager::create(spec(), cap, std::move(home)).value();
    const bool has_home = kv->residency() != nullptr;
    auto loader = std::make_unique<BlockLoader>();
    auto runner = std::make_unique<PagedFakeRunner>(kVocabSize);
    runner->selection_listener = has_home ? loader.get() : nullptr;
    peak_slots_ = 0;
    runner->before_forward = [this, raw = kv.get()](int call) {
      const std::string problem = call % 8 == 0 ? raw->check_invariants() : "";
      EXPECT_EQ(problem, "");
      peak_slots_ = std::max(peak_slots_.load(), raw->stats().slots_used);
      return problem.empty();
    };
    engine_ = Engine::create(options_, std::move(runner), std::move(kv), vocabulary_, nullptr,
                             has_home ? std::move(loader) : nullptr, std::move(speculation))
                  .value();
  }

  class Open {
   public:
    EngineClient::Callback callback(std::size_t request, int num_choices) {
      const std::lock_guard lock(mutex_);
      num_open_ += num_choices;
      return [this, request](const GenerationEvent& event) {
        const std::lock_guard inner(mutex_);
        Answer& answer = answers_[{request, event.choice}];
        for (const GeneratedToken& token : event.tokens) {
          answer.tokens.push_back(token.chosen.token);
        }
        answer.last = event;
        num_open_ -= event.finished ? 1 : 0;
        changed_.notify_all();
      };
    }
    Answers wait() {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return num_open_ == 0; });
      return answers_;
    }

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    Answers answers_;
    int num_open_ = 0;
  };

  Answers run(const std::vector<Request>& requests, bool with_aborts = false) {
    Open open;
    Open aborted;
    std::vector<RequestId> to_abort;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (with_aborts) {
        Request other = requests[i];
        other.max_tokens = 1500;
        to_abort.push_back(*engine_->submit(other, aborted.callback(i, other.num_choices)));
      }
      const auto id = engine_->submit(requests[i], open.callback(i, requests[i].num_choices));
      EXPECT_TRUE(id) << id.error().to_string();
      if (i % 2 == 1) {
        for (const RequestId other : std::exchange(to_abort, {})) {
          engine_->cancel(other);
        }
      }
    }
    Answers answers = open.wait();
    for (const RequestId other : to_abort) {
      engine_->cancel(other);
    }
    aborted.wait();
    return answers;
  }
  // Each alone, in a new engine with room for everything.
  Answers run_alone(const std::vector<Request>& requests) {
    Answers answers;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      start(kWithRoom);
      for (auto& [key, answer] : run({requests[i]})) {
        answers[{i, key.second}] = answer;
      }
      EXPECT_EQ(engine_->stats().slots_used, 0);
    }
    return answers;
  }
  // Of many_requests(), alone; they take a while.
  const Answers& answers_of_many() {
    static std::map<std::pair<CompressArchive, int>, Answers> answers;
    const std::pair key(options_.compression.archive, options_.compression.recent_tokens);
    if (!answers.contains(key)) {
      answers[key] = run_alone(many_requests());
    }
    return answers.at(key);
  }
  static void expect_same(const Answers& seen, const Answers& wanted) {
    ASSERT_EQ(seen.size(), wanted.size());
    for (const auto& [key, answer] : wanted) {
      SCOPED_TRACE("request " + std::to_string(key.first) + ", choice " +
                   std::to_string(key.second));
      const Answer& other = seen.at(key);
      EXPECT_EQ(other.last.finished, answer.last.finished);
      ASSERT_EQ(other.tokens.size(), answer.tokens.size());
      EXPECT_EQ(std::ranges::mismatch(other.tokens, answer.tokens).in1 - other.tokens.begin(),
                std::ssize(answer.tokens))
          << "the first token that differs";
    }
  }

  std::unique_ptr<Tier> host_tier(int num_slots, bool throttled) const {
    const auto slot_bytes = static_cast<std::int64_t>(spec().slot_bytes());
    auto tier = HostTier::create({.block_bytes = spec().slot_bytes(),
                                  .capacity_bytes = num_slots * slot_bytes,
                                  .num_workers = throttled ? 0 : 1})
                    .value();
    if (!throttled) {
      return tier;
    }
    return std::make_unique<ThrottledTier>(
        std::move(tier),
        Throttle{.bytes_per_second = 256 << 20, .latency = std::chrono::microseconds(20)});
  }
  // Drafts that know the answers, or do not.
  std::unique_ptr<Speculation> speculation(Drafts kind, const std::vector<Request>& requests,
                                           const Answers& wanted) const {
    if (kind == Drafts::kNone) {
      return nullptr;
    }
    const SpeculationOptions options{.max_drafts = 6, .min_drafts = 6};
    if (kind == Drafts::kNgram) {
      return std::make_unique<Speculation>(
          options, std::make_unique<NgramProposer>(NgramOptions{.min_match = 1}));
    }
    auto random = std::make_shared<std::mt19937>(5);
    const auto guess = [random, kind, &requests, &wanted](const DraftQuery& query) {
      std::vector<TokenId> drafts(static_cast<std::size_t>(query.max_drafts));
      for (TokenId& draft : drafts) {
        draft = static_cast<TokenId>((*random)() % kVocabSize);
      }
      if (kind == Drafts::kWrong || (kind == Drafts::kMixed && (*random)() % 2 == 0)) {
        return drafts;
      }
      for (const auto& [key, answer] : wanted) {
        std::vector<TokenId> all = requests[key.first].prompt;
        all.insert(all.end(), answer.tokens.begin(), answer.tokens.end());
        if (all.size() > query.tokens.size() &&
            std::equal(query.tokens.begin(), query.tokens.end(), all.begin())) {
          const auto next = all.begin() + std::ssize(query.tokens);
          drafts.assign(next, next + std::min<std::ptrdiff_t>(query.max_drafts, all.end() - next));
          break;
        }
      }
      return drafts;
    };
    return std::make_unique<Speculation>(options, std::make_unique<FakeDraftProposer>(guess));
  }
  // Windows of a request that is alone, before its last step.
  int windows_of(const Request& request) const {
    CompressionOptions options = options_.compression;
    options.keep = request.kv_compression.keep.value_or(options.keep);
    options.window_tokens = request.kv_compression.window_tokens.value_or(options.window_tokens);
    const CompressionSchedule schedule =
        schedule_of(options, static_cast<int>(request.prompt.size()), kBlockSize, 0);
    int windows = 0;
    while (schedule.publication_of(windows) <=
           std::ssize(request.prompt) + request.max_tokens - 2) {
      ++windows;
    }
    return windows;
  }

  FakeVocabulary vocabulary_{kVocabSize};
  EngineOptions options_;
  std::atomic<std::int64_t> peak_slots_ = 0;  // in use at the start of a step
  std::unique_ptr<Engine> engine_;
};

TEST_P(EngineCompress, AnswersAreThoseOfTheRequestAlone) {
  const Variant& variant = GetParam();
  const std::vector<Request> requests = many_requests();
  options_.compression.archive = variant.archive;
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
                            .aborts = true}),
    [](const auto& variant) { return variant.param.name; });

class EngineCompressed : public EngineCompress {};

TEST_F(EngineCompressed, TextIsThatWithoutCompressionUntilTheFirstPublication) {
  options_.compress = false;
  const std::vector<Request> requests = {request(20, 300, 3), request(70, 250, 5)};
  const Answers plain = run_alone(requests);
  options_.compress = true;
  for (const CompressScore score : {CompressScore::kRecent, CompressScore::kRandom}) {
    options_.compression.score = score;
    const Answers seen = run_alone(requests);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const std::vector<TokenId>& tokens = seen.at({i, 0}).tokens;
      const auto same = std::ranges::mismatch(tokens, plain.at({i, 0}).tokens).in1 - tokens.begin();
      const int prompt = static_cast<int>(requests[i].prompt.size());
      // The row at publication - 1 is the last one that sees all.
      const int publication = (prompt + 15) / 16 * 16 + 64 + 32;
      EXPECT_GE(same, publication - prompt + 1);
      EXPECT_LE(same, publication - prompt + 12) << "and soon after it is another";
    }
  }
}

TEST_F(EngineCompressed, FewerSlotsAreUsedAndAllComeBack) {
  const Request one = request(30, 700, 3);
  options_.compress = false;
  options_.prefix_cache = false;
  start(kWithRoom);
  run({one});
  const std::int64_t plain = peak_slots_;
  EXPECT_EQ(engine_->stats().slots_used, 0);
  options_.compress = true;
  std::int64_t last = plain;
  for (const double keep : {0.5, 0.25}) {
    options_.compression.keep = keep;
    start(kWithRoom);
    run({one});
    EXPECT_LT(peak_slots_, last) << keep;
    const double wanted = static_cast<double>(plain) * keep;
    EXPECT_LT(static_cast<double>(peak_slots_), wanted + 12 * 4) << keep;
    last = peak_slots_;
    const EngineStats stats = engine_->stats();
    EXPECT_EQ(stats.slots_used, 0);
    EXPECT_EQ(stats.compression.windows, windows_of(one));
    const auto kept = static_cast<std::int64_t>(64 * keep);
    EXPECT_EQ(stats.compression.pairs_kept, stats.compression.windows * kept * kFullLayers);
    EXPECT_EQ(stats.compression.pairs_dropped,
              stats.compression.windows * (64 - kept) * kFullLayers);
    EXPECT_EQ(stats.compression.pairs_archived, 0);
    EXPECT_EQ(stats.compression.bytes_saved, stats.compression.windows * (64 - kept) / kBlockSize *
                                                 kFullLayers *
                                                 static_cast<std::int64_t>(spec().slot_bytes()));
    EXPECT_GT(stats.compression.seconds, 0);
    EXPECT_EQ(stats.compression.query_bytes, 0);
  }
}

TEST_F(EngineCompressed, MoreFitIntoTheSamePool) {
  // Eight answers of 600 tokens; without compression three fit.
  std::vector<Request> requests;
  for (int i = 0; i < 8; ++i) {
    requests.push_back(request(10, 600, static_cast<TokenId>(i)));
  }
  options_.prefix_cache = false;
  options_.compression.keep = 0.25;
  const Answers wanted = run_alone(requests);
  start(8 * (kFullLayers * 22 + 8));
  expect_same(run(requests), wanted);
  EXPECT_EQ(engine_->stats().preemptions, 0);
  options_.compress = false;
  start(8 * (kFullLayers * 22 + 8));
  run(requests);
  EXPECT_GT(engine_->stats().preemptions, 0);
}

// Cut into steps and preempted while the prompt is computed, too.
TEST_F(EngineCompressed, PromptsAreCompressedIfAsked) {
  options_.compression.compresses_prompt = true;
  options_.compression.recent_tokens = 0;  // then no window is ever compressed earlier
  std::vector<Request> requests;
  for (int i = 0; i < 6; ++i) {
    requests.push_back(request(150 + i * 60, 20 + i * 20, 1 + i % 3, i % 3 == 2 ? 2 : 1));
  }
  const Answers wanted = run_alone(requests);
  for (const int num_slots : {kWithRoom, 150}) {
    for (const int batched_tokens : {512, 50}) {
      options_.scheduler.max_num_batched_tokens = batched_tokens;
      start(num_slots);
      expect_same(run(requests), wanted);
      expect_same(run(requests), wanted);
      EXPECT_EQ(engine_->stats().slots_used, 0);
    }
  }
  start(140, host_tier(3000, false));
  expect_same(run(requests), wanted);
  EXPECT_GT(engine_->stats().compression.windows, 6 * 2);
}

TEST_F(EngineCompressed, RequestsSayWhetherTheyAreCompressed) {
  options_.compress = false;
  Request plain = request(20, 200, 3);
  const Answer uncompressed = run_alone({plain}).at({0, 0});
  Request asking = plain;
  asking.kv_compression.enabled = true;
  const Answer compressed = run_alone({asking}).at({0, 0});
  EXPECT_NE(compressed.tokens, uncompressed.tokens);
  options_.compress = true;
  EXPECT_EQ(run_alone({plain}).at({0, 0}).tokens, compressed.tokens);
  plain.kv_compression.enabled = false;
  EXPECT_EQ(run_alone({plain}).at({0, 0}).tokens, uncompressed.tokens);
  EXPECT_EQ(engine_->stats().compression.windows, 0);
  asking.kv_compression.keep = 0.25;
  EXPECT_NE(run_alone({asking}).at({0, 0}).tokens, compressed.tokens);
  EXPECT_EQ(engine_->stats().compression.pairs_kept,
            engine_->stats().compression.windows * 16 * kFullLayers);
}

TEST_F(EngineCompressed, ScoresThatReadQueriesRunToo) {
  for (const CompressScore score :
       {CompressScore::kBidirectional, CompressScore::kCausal, CompressScore::kLastQueries}) {
    for (const CompressChunk chunk :
         {CompressChunk::kToken2Chunk, CompressChunk::kNone, CompressChunk::kFixed}) {
      options_.compression.score = score;
      options_.compression.chunk = chunk;
      start(kWithRoom);
      for (const auto& [key, answer] : run({request(20, 200, 3), request(60, 200, 4)})) {
        EXPECT_EQ(answer.tokens.size(), 200U);
        EXPECT_EQ(answer.last.finished, FinishReason::kLength);
      }
      EXPECT_EQ(engine_->stats().slots_used, 0);
    }
  }
}

// Without room for one window more it answers as far as a plain run would.
TEST_F(EngineCompressed, ALoneRequestThatFillsTheFastTierGoesAsFarAsWithoutCompression) {
  options_.prefix_cache = false;
  const Request one = request(60, 1500, 3);
  for (const int num_slots : {35, 36, 38, 40, 42, 45, 50}) {
    options_.compress = false;
    start(num_slots);
    const Answer plain = run({one}).at({0, 0});
    EXPECT_EQ(plain.last.finished, FinishReason::kLength);
    options_.compress = true;
    start(num_slots);
    const Answer seen = run({one}).at({0, 0});
    EXPECT_GE(seen.tokens.size(), plain.tokens.size()) << num_slots;
    EXPECT_EQ(engine_->stats().slots_used, 0);
  }
}

TEST_F(EngineCompressed, ATierThatFailsCostsTimeAndNoToken) {
  const std::vector<Request> requests = many_requests();
  const Answers& wanted = answers_of_many();
  options_.scheduler.decode_floor_tokens = 48;
  start(160, std::make_unique<FaultyTier>(
                 host_tier(3000, false), Faults{.fail_every = 6000}, [](ExtentId, int) {},
                 Clock::steady()));
  expect_same(run(requests), wanted);
  EXPECT_GT(engine_->stats().tiers.blocks_lost, 0);
  EXPECT_EQ(engine_->stats().slots_used, 0);
}

TEST_F(EngineCompressed, WhatIsAskedForWronglyIsNamed) {
  start(kWithRoom);
  const auto refused = [&](const KvCompressionRequest& asked) {
    Request one = request(20, 20, 3);
    one.kv_compression = asked;
    const auto id = engine_->submit(one, [](const GenerationEvent&) {});
    EXPECT_FALSE(id);
    EXPECT_EQ(id.error().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(id.error().message(), testing::StartsWith(id.error().field()));
    return id.error();
  };
  for (const double keep : {0.0, 1.0}) {
    const Status status = refused({.enabled = true, .keep = keep, .window_tokens = {}});
    EXPECT_EQ(status.field(), "kv_compression.keep");
    EXPECT_THAT(status.message(), HasSubstr(keep > 0 ? "keep is 1," : "keep is 0,"));
  }
  for (const int window : {0, 16, 40, 4112, (1 << 20) + 16}) {
    const Status status = refused({.enabled = {}, .keep = {}, .window_tokens = window});
    EXPECT_EQ(status.field(), "kv_compression.window");
    EXPECT_THAT(status.message(), HasSubstr("window is " + std::to_string(window)));
  }
  // Nothing is wrong with figures that are not used.
  Request off = request(20, 5, 3);
  off.kv_compression = {.enabled = false, .keep = 7.0, .window_tokens = 3};
  EXPECT_EQ(run({off}).at({0, 0}).tokens.size(), 5U);
  // Of two fields neither is at fault alone.
  options_.compression.fixed_chunk_tokens = 32;
  start(kWithRoom);
  const Status status = refused({.enabled = {}, .keep = 0.25, .window_tokens = {}});
  EXPECT_EQ(status.field(), "kv_compression");
  EXPECT_THAT(status.message(), HasSubstr("compress-chunk is fixed=32"));
}

TEST_F(EngineCompressed, AModelOfWindowsAloneIsNotCompressed) {
  const KVCacheSpec windows = PagedFakeRunner::kv_spec({40, 20});
  options_.compress = false;
  engine_ = Engine::create(options_, std::make_unique<PagedFakeRunner>(kVocabSize),
                           KVCacheManager::create(
                               windows, 500 * static_cast<std::int64_t>(windows.slot_bytes()))
                               .value(),
                           vocabulary_)
                .value();
  Request one = request(20, 200, 3);
  EXPECT_EQ(run({one}).at({0, 0}).tokens.size(), 200U);
  one.kv_compression.enabled = true;
  const auto refused = engine_->submit(one, [](const GenerationEvent&) {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message(), HasSubstr("sliding window"));
  EXPECT_EQ(refused.error().field(), "kv_compression");
  one.kv_compression.enabled = false;
  EXPECT_EQ(run({one}).at({0, 0}).tokens.size(), 200U);
}

}  // namespace engine_compress_test
}  // namespace karez::test
