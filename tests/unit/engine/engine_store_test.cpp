// The engine with prefix blocks that outlive it, against the same requests computed. The fake
// runner's tokens are a hash of all keys and values that a row may see, so one wrong, stale or
// missing block changes every token after it.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/block_payload.h"
#include "engine/engine.h"
#include "kv/tier/host_tier.h"
#include "support/fake_vocabulary.h"
#include "support/gate.h"
#include "support/paged_fake_runner.h"
#include "support/store/memory_records.h"

namespace karez::test {
namespace engine_store_test {

constexpr int kVocabSize = 40;
constexpr std::int64_t kManySlots = 20'000;

// One layer with a window among layers without: two groups of blocks.
KVCacheSpec spec() { return PagedFakeRunner::kv_spec({0, 40, 0}); }

struct Answer {
  std::vector<TokenId> tokens;
  GenerationEvent last;
};

class Answering {
 public:
  EngineClient::Callback callback(std::size_t request) {
    const std::lock_guard lock(mutex_);
    ++num_open_;
    return [this, request](const GenerationEvent& event) {
      const std::lock_guard inner(mutex_);
      Answer& answer = answers_[request];
      for (const GeneratedToken& token : event.tokens) {
        answer.tokens.push_back(token.chosen.token);
      }
      answer.last = event;
      num_open_ -= event.finished ? 1 : 0;
      changed_.notify_all();
    };
  }
  std::map<std::size_t, Answer> wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_open_ == 0; });
    return answers_;
  }
  Answer wait_for(std::size_t request) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return answers_[request].last.finished.has_value(); });
    return answers_[request];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::size_t, Answer> answers_;
  int num_open_ = 0;
};

Request request(int prompt_tokens, TokenId first, int max_tokens = 20) {
  Request request;
  for (int i = 0; i < prompt_tokens; ++i) {
    request.prompt.push_back((first + i * 7 + i / 11) % kVocabSize);
  }
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  return request;
}

// Three prompts, each at several lengths.
std::vector<Request> twelve_requests() {
  std::vector<Request> requests;
  for (int i = 0; i < 12; ++i) {
    requests.push_back(request(90 + 37 * (i / 3), static_cast<TokenId>(i % 3)));
  }
  return requests;
}

int all_but_the_last_block(const Request& request) {
  return static_cast<int>((request.prompt.size() - 1) / kBlockSize * kBlockSize);
}

class EngineStore : public testing::Test {
 protected:
  EngineStore() {
    options_.context_tokens = 400;
    options_.scheduler.max_num_batched_tokens = 32;
    records_ = std::make_shared<MemoryRecords>(
        [this](std::string_view call) { return hook_ ? hook_(call) : std::optional<Status>(); });
  }
  // hook_ is replaced while no store lives.
  ~EngineStore() override { engine_.reset(); }

  void start(std::int64_t num_slots, bool with_store = true, std::unique_ptr<Tier> home = nullptr) {
    engine_.reset();
    const auto cap = static_cast<std::int64_t>(spec().slot_bytes()) * num_slots;
    auto kv = KVCacheManager::create(spec(), cap, std::move(home)).value();
    auto loader = std::make_unique<BlockLoader>();
    auto runner = std::make_unique<PagedFakeRunner>(kVocabSize);
    runner->selection_listener = loader.get();
    runner->before_forward = [this, raw = kv.get()](int call) {
      EXPECT_EQ(raw->check_invariants(), "");
      if (at_step_) {
        at_step_(call);
      }
      return true;
    };
    std::unique_ptr<PrefixStore> store;
    if (with_store) {
      PrefixStoreOptions store_options;
      store_options.shape = {identity_digest("fake"), payload_bytes_of(spec())};
      store = std::make_unique<PrefixStore>(store_options, records_);
    }
    engine_ = Engine::create(options_, std::move(runner), std::move(kv), vocabulary_, nullptr,
                             std::move(loader), nullptr, std::move(store))
                  .value();
  }
  std::map<std::size_t, Answer> run(const std::vector<Request>& requests) {
    Answering answering;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      EXPECT_TRUE(engine_->submit(requests[i], answering.callback(i)));
    }
    return answering.wait();
  }
  std::map<std::size_t, Answer> run_without_store(const std::vector<Request>& requests) {
    start(kManySlots, false);
    return run(requests);
  }
  void fill_store(const std::vector<Request>& requests) {
    start(kManySlots);
    run(requests);
    engine_.reset();
  }
  static void expect_same(const std::map<std::size_t, Answer>& seen,
                          const std::map<std::size_t, Answer>& wanted) {
    ASSERT_EQ(seen.size(), wanted.size());
    for (const auto& [request, answer] : wanted) {
      EXPECT_EQ(seen.at(request).last.finished, answer.last.finished) << request;
      EXPECT_EQ(seen.at(request).tokens, answer.tokens) << request;
    }
  }
  void expect_all_slots_back() const {
    EXPECT_EQ(engine_->stats().slots_used, 0);
    EXPECT_EQ(engine_->stats().requests_waiting, 0);
  }

  FakeVocabulary vocabulary_{kVocabSize};
  EngineOptions options_;
  std::function<std::optional<Status>(std::string_view)> hook_;
  std::function<void(int call)> at_step_;  // by the engine's thread
  std::shared_ptr<MemoryRecords> records_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineStore, RestoredPromptsHaveTheAnswersOfComputedOnes) {
  const auto requests = twelve_requests();
  const auto wanted = run_without_store(requests);
  fill_store(requests);
  start(kManySlots);
  const auto seen = run(requests);
  expect_same(seen, wanted);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(seen.at(i).last.cached_tokens, all_but_the_last_block(requests[i])) << i;
  }
  // Three prompts, whose longest has 200 tokens: each block was read once.
  EXPECT_EQ(engine_->stats().restores.restored_blocks, 3 * 12);
  EXPECT_EQ(engine_->stats().restores.hits, 12);
  expect_all_slots_back();
}

TEST_F(EngineStore, AnswersAreStoredTooAndAConversationGoesOnFromThere) {
  const std::vector<Request> first = {request(100, 5, 60)};
  fill_store(first);
  start(kManySlots, false);
  const auto answer = run(first);
  Request next = first[0];
  next.prompt.insert(next.prompt.end(), answer.at(0).tokens.begin(), answer.at(0).tokens.end());
  next.prompt.push_back(3);
  const auto wanted = run({next});
  start(kManySlots);
  const auto seen = run({next});
  expect_same(seen, wanted);
  // The last token of an answer is not computed.
  EXPECT_EQ(seen.at(0).last.cached_tokens, (100 + 59) / kBlockSize * kBlockSize);
}

TEST_F(EngineStore, WithFewSlotsTheRestIsComputed) {
  const auto requests = twelve_requests();
  const auto wanted = run_without_store(requests);
  fill_store(requests);
  // The longest prompt and its answer take 14 blocks in each of three layers.
  for (const std::int64_t slots : {46, 60, 100, 200}) {
    start(slots);
    expect_same(run(requests), wanted);
    // Nobody runs before the first one has come, and its five blocks always have room.
    EXPECT_GE(engine_->stats().restores.restored_blocks, 5) << slots;
    expect_same(run(requests), wanted);
    expect_all_slots_back();
  }
}

TEST_F(EngineStore, NothingIsRestoredWhileThoseThatRunNeedTheSlots) {
  // The last one runs, with 29 of 46 slots, when the others come.
  std::vector<Request> requests = {request(200, 1), request(100, 7), request(200, 2)};
  requests[2].use_prefix_cache = false;
  const auto wanted = run_without_store(requests);
  fill_store({requests[0]});
  Gate submitted;
  Gate found;
  std::atomic<int> num_finds = 0;
  hook_ = [&](std::string_view call) -> std::optional<Status> {
    if (call == "find" && ++num_finds == 2) {
      found.open();  // the first one has its result
    }
    return std::nullopt;
  };
  at_step_ = [&](int call) {
    if (call == 10) {  // after seven steps with the prompt
      submitted.pass();
    } else if (call == 11) {
      found.pass();
    }
  };
  start(46);
  Answering answering;
  ASSERT_TRUE(engine_->submit(requests[2], answering.callback(2)));
  submitted.wait_until_held();
  EXPECT_TRUE(engine_->submit(requests[0], answering.callback(0)));
  EXPECT_TRUE(engine_->submit(requests[1], answering.callback(1)));
  submitted.open();
  const auto seen = answering.wait();
  expect_same(seen, wanted);
  EXPECT_EQ(engine_->stats().restores.hits, 1);
  EXPECT_EQ(engine_->stats().restores.restored_blocks, 0);
  EXPECT_EQ(seen.at(0).last.cached_tokens, 0);
  expect_all_slots_back();
  engine_.reset();
}

TEST_F(EngineStore, WorksAboveAHomeTier) {
  const auto requests = twelve_requests();
  const auto wanted = run_without_store(requests);
  const auto home = [] {
    return HostTier::create(
               {.block_bytes = spec().slot_bytes(),
                .capacity_bytes = 2000 * static_cast<std::int64_t>(spec().slot_bytes()),
                .num_workers = 0})
        .value();
  };
  for (int round = 0; round < 2; ++round) {
    start(60, true, home());
    expect_same(run(requests), wanted);
  }
  EXPECT_GT(engine_->stats().restores.restored_blocks, 0);
  expect_all_slots_back();
}

TEST_F(EngineStore, BadAndMissingRecordsAreComputed) {
  const auto requests = twelve_requests();
  const auto wanted = run_without_store(requests);
  fill_store(requests);
  int count = 0;
  records_->change_all([&](std::vector<std::byte>& bytes) {
    if (++count % 4 == 0) {
      bytes[bytes.size() / 2] ^= std::byte{4};
    } else if (count % 7 == 0) {
      bytes.clear();
    }
  });
  start(kManySlots);
  expect_same(run(requests), wanted);
  EXPECT_GT(engine_->stats().store.bad_records, 0);
  // And stored again.
  start(kManySlots);
  const auto seen = run(requests);
  expect_same(seen, wanted);
  EXPECT_EQ(seen.at(0).last.cached_tokens, all_but_the_last_block(requests[0]));
}

TEST_F(EngineStore, AllBadRecordsOfAPromptAreStoredAgainWhenItIsComputed) {
  const Request prompt = request(200, 1);
  const auto wanted = run_without_store({prompt});
  fill_store({prompt});
  const auto keys = record_keys(identity_digest("fake"), prompt.cache_salt, prompt.prompt, 12);
  for (const std::size_t bad : {3, 5, 6, 11}) {
    ASSERT_TRUE(records_->flip_a_bit(keys[bad].name)) << bad;
  }
  records_->remove(keys[9].name);
  const std::size_t num_written = records_->num_written();
  start(kManySlots);
  const auto seen = run({prompt});
  expect_same(seen, wanted);
  EXPECT_EQ(seen.at(0).last.cached_tokens, 3 * kBlockSize);
  engine_.reset();  // once it has stored what it will
  EXPECT_EQ(records_->num_written(), num_written + 5);
  start(kManySlots);
  const auto healed = run({prompt});
  expect_same(healed, wanted);
  EXPECT_EQ(healed.at(0).last.cached_tokens, all_but_the_last_block(prompt));
  EXPECT_EQ(engine_->stats().restores.restored_blocks, 12);
  EXPECT_EQ(engine_->stats().store.bad_records, 0);
}

TEST_F(EngineStore, FailuresOfEveryKindOfCallChangeNoAnswer) {
  const auto requests = twelve_requests();
  const auto wanted = run_without_store(requests);
  fill_store(requests);
  std::mutex mutex;     // of all three below: loads and stores have a thread each
  std::string failing;  // empty: calls of every kind
  std::map<std::string, int> num_calls;
  std::map<std::string, int> num_failed;
  hook_ = [&](std::string_view call) -> std::optional<Status> {
    const std::lock_guard lock(mutex);
    const std::string kind(call);
    // Never three loads in a row, after which there are none for a while. What was used may be told
    // in one call.
    const int every = kind == "touch" ? 1 : 3;
    if ((!failing.empty() && kind != failing) || ++num_calls[kind] % every != 0) {
      return std::nullopt;
    }
    ++num_failed[kind];
    return Status(StatusCode::kIoError, "broken");
  };
  for (const char* kind : {"find", "read", "write", "touch", ""}) {
    {
      const std::lock_guard lock(mutex);
      failing = kind;
      num_calls.clear();
    }
    start(kManySlots);
    expect_same(run(requests), wanted);
    EXPECT_GT(engine_->stats().restores.restored_blocks, 0) << kind;
    engine_.reset();  // once it has stored what it will
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(failing.empty() || num_failed[failing] > 0) << kind;
  }
}

TEST_F(EngineStore, OthersGoOnWhileALoadHangsAndThenItIsComputed) {
  const std::vector<Request> stored = {request(200, 1)};
  const std::vector<Request> other = {request(150, 2)};
  const auto wanted = run_without_store({stored[0], other[0]});
  fill_store(stored);
  const auto gate = std::make_shared<Gate>();
  hook_ = [gate](std::string_view call) -> std::optional<Status> {
    if (call == "read") {
      gate->pass();
    }
    return std::nullopt;
  };
  std::atomic<double> now = 0;
  options_.clock = [&] { return now.load(); };
  start(kManySlots);
  Answering answering;
  ASSERT_TRUE(engine_->submit(stored[0], answering.callback(0)));
  gate->wait_until_held();
  Request uncached = other[0];
  uncached.use_prefix_cache = false;
  ASSERT_TRUE(engine_->submit(uncached, answering.callback(1)));
  EXPECT_EQ(answering.wait_for(1).tokens, wanted.at(1).tokens);
  EXPECT_EQ(engine_->stats().requests_waiting, 1);
  now = 6;  // past the limit of 5 seconds
  const Answer late = answering.wait_for(0);
  EXPECT_EQ(late.tokens, wanted.at(0).tokens);
  EXPECT_EQ(late.last.cached_tokens, 0);
  gate->open();
  engine_.reset();
}

TEST_F(EngineStore, ARequestThatIsHeldCanBeCancelledAndTheEngineCanEnd) {
  const std::vector<Request> stored = {request(200, 1)};
  fill_store(stored);
  const auto gate = std::make_shared<Gate>();
  hook_ = [gate](std::string_view call) -> std::optional<Status> {
    if (call == "read") {
      gate->pass();
    }
    return std::nullopt;
  };
  start(kManySlots);
  Answering answering;
  const auto id = engine_->submit(stored[0], answering.callback(0));
  ASSERT_TRUE(id);
  gate->wait_until_held();
  engine_->cancel(*id);
  EXPECT_EQ(answering.wait_for(0).last.finished, FinishReason::kCancelled);
  ASSERT_TRUE(engine_->submit(stored[0], answering.callback(1)));
  engine_->shutdown(std::chrono::milliseconds(0));
  EXPECT_EQ(answering.wait_for(1).last.finished, FinishReason::kCancelled);
  expect_all_slots_back();
  engine_.reset();
  gate->open();
}

TEST_F(EngineStore, WhoDoesNotWantACacheNeitherStoresNorLoads) {
  Request request_without = request(200, 1);
  request_without.use_prefix_cache = false;
  fill_store({request_without});
  EXPECT_EQ(records_->size(), 0U);
  fill_store({request(200, 1)});
  EXPECT_GT(records_->size(), 0U);
  start(kManySlots);
  EXPECT_EQ(run({request_without}).at(0).last.cached_tokens, 0);
  Request salted = request(200, 1);
  salted.cache_salt = "another tenant";
  EXPECT_EQ(run({salted}).at(0).last.cached_tokens, 0);
}

// The prompt is stored, and of the answer what was computed before its first window was compressed:
// these blocks are whole. Nothing behind has the KV that it would have in a prompt.
TEST_F(EngineStore, WhatIsCompressedIsNeverStoredNorServedAsWhole) {
  options_.compression.window_tokens = 64;
  options_.compression.recent_tokens = 32;
  options_.compression.score = CompressScore::kRandom;
  constexpr std::size_t kWhole = (112 + 64 + 32) / kBlockSize;  // until the first publication
  for (const CompressArchive archive : {CompressArchive::kOff, CompressArchive::kR4}) {
    SCOPED_TRACE(to_string(archive));
    options_.compression.archive = archive;
    Request compressed = request(100, archive == CompressArchive::kOff ? 5 : 6, 150);
    const auto plain = run_without_store({compressed});
    compressed.kv_compression.enabled = true;
    const auto answer = run_without_store({compressed});
    ASSERT_NE(answer.at(0).tokens, plain.at(0).tokens);
    EXPECT_EQ(engine_->stats().compression.windows, 1);
    // A conversation goes on behind it, without compression.
    Request next = request(0, 0);
    next.prompt = compressed.prompt;
    next.prompt.insert(next.prompt.end(), answer.at(0).tokens.begin(), answer.at(0).tokens.end());
    next.prompt.push_back(3);
    const auto wanted = run_without_store({next});

    const std::size_t num_records = records_->size();
    fill_store({compressed});
    EXPECT_EQ(records_->size(), num_records + kWhole);
    start(kManySlots);
    const auto seen = run({next});
    expect_same(seen, wanted);
    EXPECT_EQ(seen.at(0).last.cached_tokens, static_cast<int>(kWhole) * kBlockSize);
    // And the same again with its prompt from the store: its windows need their queries.
    start(kManySlots);
    const auto again = run({compressed});
    expect_same(again, answer);
    EXPECT_EQ(again.at(0).last.cached_tokens, all_but_the_last_block(compressed));
    EXPECT_EQ(engine_->stats().compression.windows, 1);
    expect_all_slots_back();
  }
}

}  // namespace engine_store_test
}  // namespace karez::test
