// The engine with a home tier below a fast tier that is much too small, against the same requests
// with room for everything. The fake runner's tokens are a hash of all keys and values that a row
// may see, so one wrong, stale or missing block changes every token after it.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "kv/tier/disk_tier.h"
#include "kv/tier/host_tier.h"
#include "kv/tier/throttled_tier.h"
#include "support/answer_collector.h"
#include "support/fake_vocabulary.h"
#include "support/paged_fake_runner.h"
#include "support/step_gate.h"
#include "support/tier/fake_clock.h"
#include "support/tier/faulty_tier.h"

namespace karez::test {
namespace engine_tiers_test {

constexpr int kVocabSize = 40;
constexpr int kNumLayers = 12;

// One layer with a window among layers without: two groups of blocks.
KVCacheSpec spec() {
  std::vector<int> windows(kNumLayers, 0);
  windows[3] = 40;
  return PagedFakeRunner::kv_spec(windows);
}

std::unique_ptr<Tier> host_tier(std::int64_t blocks, int workers) {
  return HostTier::create(
             {.block_bytes = spec().slot_bytes(),
              .capacity_bytes = blocks * static_cast<std::int64_t>(spec().slot_bytes()),
              .num_workers = workers})
      .value();
}

// Blocks take twice the room of their bytes.
class PaddedTier final : public Tier {
 public:
  explicit PaddedTier(std::unique_ptr<Tier> inner) : inner_(std::move(inner)) {}
  std::optional<ExtentId> allocate_extent() override { return inner_->allocate_extent(); }
  void free_extent(ExtentId extent) override { inner_->free_extent(extent); }
  std::size_t submit(std::span<const Transfer> transfers) override {
    return inner_->submit(transfers);
  }
  void poll(std::vector<TransferResult>& results) override { inner_->poll(results); }
  void wait_until(Clock::TimePoint time) override { inner_->wait_until(time); }
  std::size_t block_bytes() const override { return inner_->block_bytes(); }
  TierCapacity capacity() const override {
    TierCapacity capacity = inner_->capacity();
    capacity.extent_bytes *= 2;
    return capacity;
  }
  std::string describe() const override { return "padded " + inner_->describe(); }

 private:
  std::unique_ptr<Tier> inner_;
};

using Answer = CollectedAnswer;
using Answers = std::map<int, Answer>;  // by choice

Request request(int prompt_tokens, int max_tokens, TokenId first, int num_choices = 1) {
  return fake_request(kVocabSize, prompt_tokens, max_tokens, first, num_choices);
}

std::map<std::size_t, Answers> by_request(const AnswerCollector::Answers& collected) {
  std::map<std::size_t, Answers> answers;
  for (const auto& [key, answer] : collected) {
    answers[key.first][key.second] = answer;
  }
  return answers;
}

class EngineTiers : public testing::Test {
 protected:
  EngineTiers() {
    options_.context_tokens = 2000;
    options_.scheduler.max_num_batched_tokens = 64;
  }

  // The cap is looked at in every step, all invariants in every fourth: they take longer than a
  // step.
  void start(std::int64_t num_slots, std::unique_ptr<Tier> home,
             const Clock& clock = Clock::steady()) {
    const auto cap = static_cast<std::int64_t>(spec().slot_bytes()) * num_slots;
    auto kv = KVCacheManager::create(spec(), cap, std::move(home), clock).value();
    auto loader = std::make_unique<BlockLoader>();
    auto runner = std::make_unique<PagedFakeRunner>(kVocabSize);
    runner->selection_listener = loader.get();
    runner->before_forward = [this, raw = kv.get(), num_slots](int call) {
      if (at_step_) {
        at_step_();
      }
      const std::string problem = call % 4 == 0 ? raw->check_invariants() : "";
      EXPECT_EQ(problem, "");
      const KVCacheStats stats = raw->stats();
      EXPECT_LE(stats.slots_used + stats.slots_idle, num_slots);
      if (raw->residency() != nullptr) {
        residency_ = raw->residency()->stats();
      }
      return problem.empty();
    };
    engine_ = Engine::create(options_, std::move(runner), std::move(kv), vocabulary_, nullptr,
                             std::move(loader))
                  .value();
  }
  std::map<std::size_t, Answers> run(const std::vector<Request>& requests) {
    AnswerCollector collector;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const auto id = engine_->submit(requests[i], collector.callback(i, requests[i].num_choices));
      EXPECT_TRUE(id) << id.error().to_string();
    }
    return by_request(collector.wait());
  }
  // With room for everything, and no home.
  std::map<std::size_t, Answers> run_with_room(const std::vector<Request>& requests) {
    start(60'000, nullptr);
    auto answers = run(requests);
    engine_.reset();
    return answers;
  }
  static void expect_same(const std::map<std::size_t, Answers>& seen,
                          const std::map<std::size_t, Answers>& wanted) {
    ASSERT_EQ(seen.size(), wanted.size());
    for (const auto& [request, choices] : wanted) {
      for (const auto& [choice, answer] : choices) {
        const Answer& other = seen.at(request).at(choice);
        EXPECT_EQ(other.last.finished, answer.last.finished) << request << " " << choice;
        EXPECT_EQ(other.tokens, answer.tokens) << request << " " << choice;
      }
    }
  }

  FakeVocabulary vocabulary_{kVocabSize};
  EngineOptions options_;
  ResidencyStats residency_;       // at the start of the last step
  std::function<void()> at_step_;  // by the engine's thread
  std::unique_ptr<Engine> engine_;
};

std::vector<Request> forty_requests() {
  std::vector<Request> requests;
  for (int i = 0; i < 40; ++i) {
    requests.push_back(request(100 + i * 3, 30 + i % 7, static_cast<TokenId>(i)));
  }
  return requests;
}

TEST_F(EngineTiers, FortySequencesOfFiveTimesTheCapHaveTheAnswersOfThoseWithRoom) {
  const auto wanted = run_with_room(forty_requests());
  // 40 sequences of about 190 tokens: 12 blocks in each of 12 layers.
  constexpr std::int64_t kAllSlots = 40 * 12 * 12;
  for (const int workers : {0, 1}) {
    for (const int floor_tokens : {0, 48}) {
      options_.scheduler.decode_floor_tokens = floor_tokens;
      start(kAllSlots / 5, host_tier(2 * kAllSlots, workers));
      const auto seen = run(forty_requests());
      engine_.reset();
      expect_same(seen, wanted);
      EXPECT_GT(residency_.bytes_written, 0);
      EXPECT_EQ(residency_.blocks_lost, 0);
    }
  }
  EXPECT_GT(residency_.demand_misses, 0);
}

TEST_F(EngineTiers, APromptOfFourTimesTheFastTierStreams) {
  const std::vector<Request> requests = {request(1000, 40, 3)};
  const auto wanted = run_with_room(requests);
  // 1,040 tokens: 65 blocks in 11 layers, a quarter of that is 179.
  start(65 * 11 / 4, host_tier(2000, 0));
  const auto seen = run(requests);
  engine_.reset();
  expect_same(seen, wanted);
  EXPECT_GT(residency_.evictions, 1000);
  // What it read and what of that had to be loaded is told with the answer.
  const GenerationEvent& last = seen.at(0).at(0).last;
  EXPECT_GT(last.kv_blocks_loaded, 1000);
  EXPECT_GT(last.kv_blocks_read, last.kv_blocks_loaded);
}

// While the write is not tried again nothing goes home, and the fast tier fills up.
TEST_F(EngineTiers, AWriteThatFailsOnceEndsNoPromptThatStreams) {
  const std::vector<Request> requests = {request(1000, 40, 3)};
  const auto wanted = run_with_room(requests);
  FakeClock clock;
  start(65 * 11 / 4,
        std::make_unique<FaultyTier>(
            host_tier(2000, 0), Faults{.fail_write = 30}, [](ExtentId, int) {}, clock),
        clock);
  const auto seen = run(requests);
  engine_.reset();
  expect_same(seen, wanted);
  EXPECT_EQ(residency_.write_failures, 4) << "the blocks of one transfer";
  EXPECT_EQ(residency_.blocks_lost, 0);
}

TEST_F(EngineTiers, PaddingAtHomeIsNoRoomForPrompts) {
  // 800 tokens: 50 blocks in 11 layers. The bytes of home are those of 800 blocks, it holds 400.
  start(200, std::make_unique<PaddedTier>(host_tier(400, 0)));
  AnswerCollector collector;
  const auto refused = engine_->submit(request(800, 4, 3), collector.callback(0, 0));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kResourceExhausted);
  const auto accepted = engine_->submit(request(500, 4, 3), collector.callback(1, 1));
  ASSERT_TRUE(accepted);
  EXPECT_EQ(collector.wait().at({1, 0}).tokens.size(), 4U);
}

// Beside the blocks of one layer, up to 65, there is room to write two blocks of all of them, and
// not the four of a whole step.
TEST_F(EngineTiers, APromptWhoseLayersHardlyFitStreamsInSmallSteps) {
  const std::vector<Request> requests = {request(1000, 40, 3)};
  const auto wanted = run_with_room(requests);
  start(90, host_tier(2000, 0));
  const auto seen = run(requests);
  engine_.reset();
  expect_same(seen, wanted);
  EXPECT_EQ(residency_.blocks_lost, 0);
}

TEST_F(EngineTiers, APromptThatEvenHomeCannotHoldIsRefused) {
  start(200, host_tier(400, 0));
  AnswerCollector collector;
  const auto refused = engine_->submit(request(1000, 4, 3), collector.callback(0, 0));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kResourceExhausted);
}

TEST_F(EngineTiers, AHomeThatIsFullGivesTheSameAnswers) {
  const auto wanted = run_with_room(forty_requests());
  start(700, host_tier(900, 0));
  const auto seen = run(forty_requests());
  engine_.reset();
  expect_same(seen, wanted);
}

// Both grow side by side until the second one is demoted, with 135 blocks. At its end the first one
// has 290, and the small home holds 64, so both have no room in 306 slots and there. One alone has.
TEST_F(EngineTiers, AHomeThatIsFullMakesThemBeComputedAgain) {
  std::vector<Request> requests = {request(20, 390, 3), request(20, 390, 5)};
  for (Request& one : requests) {
    one.use_prefix_cache = false;  // nothing that is given up is found again
  }
  const auto wanted = run_with_room(requests);
  std::map<std::int64_t, std::int64_t> blocks_read;  // by the size of home
  for (const std::int64_t home_blocks : {4000, 64}) {
    StepGate first_step(0);
    at_step_ = [&] { first_step.pass(); };
    start(307, host_tier(home_blocks, 0));
    AnswerCollector collector;
    EXPECT_TRUE(engine_->submit(requests[0], collector.callback(0, 1)));
    first_step.wait_until_held();
    EXPECT_TRUE(engine_->submit(requests[1], collector.callback(1, 1)));
    first_step.open();
    const auto seen = by_request(collector.wait());
    EXPECT_GT(engine_->stats().demotions, 0);
    engine_.reset();
    at_step_ = {};
    expect_same(seen, wanted);
    for (const auto& [request, choices] : seen) {
      blocks_read[home_blocks] += choices.at(0).last.kv_blocks_read;
    }
  }
  // A step reads all that its sequence has: as much each time, but for what is computed again.
  EXPECT_GT(blocks_read[64], blocks_read[4000]);
}

TEST_F(EngineTiers, DiskGivesTheSameAnswers) {
  const auto wanted = run_with_room(forty_requests());
  options_.scheduler.decode_floor_tokens = 48;
  auto disk = DiskTier::create({.directory = testing::TempDir(),
                                .block_bytes = spec().slot_bytes(),
                                .capacity_bytes = std::int64_t{256} << 20});
  ASSERT_TRUE(disk) << disk.error().to_string();
  start(1152, std::move(*disk));
  const auto seen = run(forty_requests());
  engine_.reset();
  expect_same(seen, wanted);
}

TEST_F(EngineTiers, TheMapShowsWhereARequestsBlocksAre) {
  start(65 * 11 / 4, host_tier(2000, 0));
  // Asked for in each step: that of the step before comes, so none is missed on a slow machine.
  std::shared_ptr<const KvMap> map;  // the first one of so many tokens
  at_step_ = [&] {
    auto latest = engine_->kv_map();
    if (map == nullptr && latest != nullptr && latest->num_tokens >= 600) {
      map = std::move(latest);
    }
  };
  AnswerCollector collector;
  ASSERT_TRUE(engine_->submit(request(1000, 40, 3), collector.callback(0, 1)));
  collector.wait();
  ASSERT_NE(map, nullptr);
  EXPECT_EQ(map->num_layers, kNumLayers);
  EXPECT_EQ(map->num_blocks, (map->num_tokens + 15) / 16);
  ASSERT_EQ(map->cells.size(), static_cast<std::size_t>(kNumLayers * map->num_blocks));
  // A dense step reads all, and leaves the first layers at home when the last have been read.
  const auto count = [&](std::uint8_t cell) { return std::ranges::count(map->cells, cell); };
  EXPECT_GT(count(KvMap::kHome | KvMap::kWasRead), 0);
  EXPECT_GT(count(KvMap::kFast | KvMap::kWasRead), 0);
  EXPECT_GT(count(KvMap::kNowhere), 0);  // the layer with a window
}

TEST_F(EngineTiers, AThrottledTierGivesTheSameAnswers) {
  const std::vector<Request> requests = {request(300, 12, 3), request(320, 12, 5)};
  const auto wanted = run_with_room(requests);
  start(200, std::make_unique<ThrottledTier>(
                 host_tier(2000, 0),
                 Throttle{.bytes_per_second = 64 << 20, .latency = std::chrono::microseconds(50)}));
  const auto seen = run(requests);
  engine_.reset();
  expect_same(seen, wanted);
}

// What cannot be read back is computed again; what cannot be written stays in the fast tier.
TEST_F(EngineTiers, ATierThatFailsCostsTimeAndNoToken) {
  std::vector<Request> requests = forty_requests();
  requests.resize(12);
  const auto wanted = run_with_room(requests);
  options_.scheduler.decode_floor_tokens = 64;
  start(700,
        std::make_unique<FaultyTier>(
            host_tier(4000, 0), Faults{.fail_every = 997}, [](ExtentId, int) {}, Clock::steady()));
  const auto seen = run(requests);
  engine_.reset();
  expect_same(seen, wanted);
  EXPECT_GT(residency_.blocks_lost, 0);
}

// Computed again so often that it is given up, it ends with an error, and the engine goes on.
TEST_F(EngineTiers, APromptThatIsNeverReadBackEndsWithAnError) {
  const std::vector<Request> requests = {request(1000, 10, 3), request(100, 10, 1)};
  const auto wanted = run_with_room(requests);
  FakeClock clock;
  start(400,
        std::make_unique<FaultyTier>(
            host_tier(4000, 0), Faults{.fail_every = 1, .hits_writes = false}, [](ExtentId, int) {},
            clock),
        clock);
  const auto seen = run(requests);
  engine_.reset();
  const Answer& large = seen.at(0).at(0);
  EXPECT_EQ(large.last.finished, FinishReason::kError);
  ASSERT_TRUE(large.last.error.has_value());
  EXPECT_EQ(large.last.error->code(), StatusCode::kUnavailable);
  EXPECT_EQ(seen.at(1).at(0).last.finished, FinishReason::kLength);
  EXPECT_EQ(seen.at(1).at(0).tokens, wanted.at(1).at(0).tokens);
}

// Nothing is at home that could be evicted: the first one, alone, fills the fast tier before its
// prompt is computed, which ends it as any that has used up the room there is.
TEST_F(EngineTiers, ATierThatAlwaysFailsEndsOnlyWhatNeedsIt) {
  const std::vector<Request> requests = {request(1000, 10, 3), request(100, 10, 1)};
  const auto wanted = run_with_room(requests);
  FakeClock clock;
  start(400,
        std::make_unique<FaultyTier>(
            host_tier(4000, 0), Faults{.fail_every = 1}, [](ExtentId, int) {}, clock),
        clock);
  const auto seen = run(requests);
  engine_.reset();
  const Answer& large = seen.at(0).at(0);
  EXPECT_EQ(large.last.finished, FinishReason::kLength);
  EXPECT_FALSE(large.last.error.has_value());
  EXPECT_TRUE(large.tokens.empty());
  const Answer& small = seen.at(1).at(0);
  EXPECT_EQ(small.last.finished, FinishReason::kLength);
  EXPECT_EQ(small.tokens, wanted.at(1).at(0).tokens);
  EXPECT_EQ(small.tokens.size(), 10U);
  EXPECT_GT(residency_.write_failures, 0);
  EXPECT_EQ(residency_.bytes_written, 0);
}

TEST_F(EngineTiers, ChoicesPrefixHitsPrioritiesAndAbortsMix) {
  std::vector<Request> requests;
  std::mt19937 random(7);
  for (int i = 0; i < 30; ++i) {
    Request next =
        request(60 + static_cast<int>(random() % 200), 10 + static_cast<int>(random() % 30),
                static_cast<TokenId>(i % 4), 1 + i % 3);
    next.priority = static_cast<int>(random() % 3);
    requests.push_back(next);
  }
  const auto wanted = run_with_room(requests);
  options_.scheduler.policy = SchedulingPolicy::kPriority;
  options_.scheduler.decode_floor_tokens = 48;
  start(900, host_tier(12'000, 1));
  AnswerCollector collector;
  AnswerCollector aborted;
  std::vector<RequestId> to_abort;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    ASSERT_TRUE(engine_->submit(requests[i], collector.callback(i, requests[i].num_choices)));
    if (i % 3 == 0) {
      Request other = requests[i];
      other.max_tokens = 500;
      to_abort.push_back(*engine_->submit(other, aborted.callback(i, other.num_choices)));
    }
  }
  for (const RequestId id : to_abort) {
    engine_->cancel(id);
  }
  const auto seen = by_request(collector.wait());
  aborted.wait();
  const EngineStats stats = engine_->stats();
  engine_.reset();
  expect_same(seen, wanted);
  EXPECT_EQ(stats.requests_waiting, 0);
}

}  // namespace engine_tiers_test
}  // namespace karez::test
