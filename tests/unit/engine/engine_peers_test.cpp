// Prompts that one engine prefills and another decodes, against one engine that does both. The fake
// runner's tokens are a hash of all keys and values that a row may see, so one wrong, stale or
// missing block changes every token after it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "kv/tier/host_tier.h"
#include "remote/remote_tier.h"
#include "support/answer_collector.h"
#include "support/fake_vocabulary.h"
#include "support/paged_fake_runner.h"
#include "support/step_gate.h"

namespace karez::test {
namespace engine_peers_test {

constexpr int kVocabSize = 40;
constexpr int kNumLayers = 4;
constexpr std::int64_t kPoolSlots = 4000;

// One layer with a window among layers without: two groups of blocks.
KVCacheSpec spec() {
  std::vector<int> windows(kNumLayers, 0);
  windows[1] = 40;
  return PagedFakeRunner::kv_spec(windows);
}

PeerConfig peer_config() {
  PeerConfig config;
  config.num_layers = kNumLayers;
  config.num_kv_heads = 1;
  config.head_dim = 16;
  config.block_tokens = kBlockSize;
  config.block_bytes = spec().slot_bytes();
  config.kv_type = "bf16";
  config.index_kind = "none";
  config.max_tokens = 2000;
  return config;
}

std::int64_t bytes_of(std::int64_t blocks) {
  return blocks * static_cast<std::int64_t>(spec().slot_bytes());
}

struct Answer {
  std::vector<TokenId> tokens;
  GenerationEvent last;
};

// The answers to one request.
class Client {
 public:
  Client(Engine& engine, const Request& request) : num_open_(request.num_choices) {
    id_ = engine.submit(request, [this](const GenerationEvent& event) { take(event); }).value();
  }
  std::map<int, Answer> wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_open_ == 0; });
    return answers_;
  }
  RequestId id() const { return id_; }

 private:
  void take(const GenerationEvent& event) {
    const std::lock_guard lock(mutex_);
    Answer& answer = answers_[event.choice];
    for (const GeneratedToken& token : event.tokens) {
      answer.tokens.push_back(token.chosen.token);
    }
    answer.last = event;
    num_open_ -= event.finished ? 1 : 0;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, Answer> answers_;
  int num_open_;
  RequestId id_ = 0;
};

Request request_of(int prompt_tokens, int max_tokens, TokenId first = 3) {
  return fake_request(kVocabSize, prompt_tokens, max_tokens, first);
}

// The machine's, which a test can put forward.
class MovedClock final : public Clock {
 public:
  TimePoint now() const override { return steady().now() + ahead_.load(); }
  void sleep_until(TimePoint time) const override { steady().sleep_until(time - ahead_.load()); }
  void put_forward(Duration by) { ahead_ = by; }

 private:
  std::atomic<Duration> ahead_ = Duration{};
};

class SplitEngine : public testing::TestWithParam<KvAdmit> {
 protected:
  SplitEngine() {
    options_.context_tokens = 2000;
    options_.scheduler.max_num_batched_tokens = 64;
    options_.prefix_cache = false;
  }

  // In windows of 64 tokens, behind which so many lie.
  void compress_prompts(int recent_tokens) {
    options_.compress = true;
    options_.compression.compresses_prompt = true;
    options_.compression.window_tokens = 64;
    options_.compression.recent_tokens = recent_tokens;
  }

  std::unique_ptr<Engine> plain() {
    auto kv = KVCacheManager::create(spec(), bytes_of(kPoolSlots)).value();
    return Engine::create(options_, std::make_unique<PagedFakeRunner>(kVocabSize), std::move(kv),
                          vocabulary_)
        .value();
  }

  void start_producer(Clock::Duration lease = std::chrono::seconds(30)) {
    auto memory = ExportMemory::create(static_cast<std::size_t>(bytes_of(kPoolSlots))).value();
    HostTierOptions host{.block_bytes = spec().slot_bytes(), .num_workers = 0};
    auto tier = HostTier::create(host, ExportMemory::arena(memory)).value();
    const std::int64_t extent_bytes = tier->capacity().extent_bytes;
    auto kv = KVCacheManager::create(spec(), bytes_of(kPoolSlots), std::move(tier)).value();
    KvExporterOptions exporter;
    exporter.config = peer_config();
    exporter.lease_duration = lease;
    KvPeers peers;
    peers.producer = std::make_unique<KvProducer>(
        *kv, nullptr, memory, KvExporter::create(exporter, memory).value(),
        KvProducer::Options{"127.0.0.1", "producer", extent_bytes});
    producer_ = create(std::move(kv), std::move(peers));
  }

  void start_consumer(KvLoadFailure policy, std::int64_t num_slots = kPoolSlots,
                      std::int64_t home_slots = kPoolSlots) {
    KvPeers peers;
    PeerPoolOptions pool;
    pool.config = peer_config();
    pool.config.wire_type = wire_type_;
    pool.connect_timeout = std::chrono::seconds(10);
    const std::shared_ptr<PeerPool> peer_pool = PeerPool::create(pool).value();
    HostTierOptions host{.block_bytes = spec().slot_bytes(),
                         .capacity_bytes = bytes_of(home_slots),
                         .num_workers = 0};
    auto tier = std::make_unique<RemoteTier>(HostTier::create(host).value(), peer_pool,
                                             RemoteTierOptions{.max_adopted_extents = 4000});
    RemoteTier* remote = tier.get();
    auto kv = KVCacheManager::create(spec(), bytes_of(num_slots), std::move(tier)).value();
    peers.consumer = std::make_unique<KvConsumer>(*kv, nullptr, peer_pool, remote,
                                                  KvConsumer::Options{admit_, kVocabSize}, clock_);
    kv_consumer_ = peers.consumer.get();
    peers.load_failure = policy;
    peers.log = [this](std::string_view line) { notes_.emplace_back(line); };
    consumer_ = create(std::move(kv), std::move(peers));
  }

  std::unique_ptr<Engine> create(std::unique_ptr<KVCacheManager> kv, KvPeers peers) {
    auto loader = std::make_unique<BlockLoader>();
    auto runner = std::make_unique<PagedFakeRunner>(kVocabSize);
    runner->selection_listener = loader.get();
    runner->before_forward = [this, raw = kv.get()](int call) {
      if (at_step_) {
        at_step_();
      }
      const std::string problem = call % 8 == 0 ? raw->check_invariants() : "";
      EXPECT_EQ(problem, "");
      return problem.empty();
    };
    return Engine::create(options_, std::move(runner), std::move(kv), vocabulary_, nullptr,
                          std::move(loader), nullptr, nullptr, std::move(peers))
        .value();
  }

  // What the producer answers to the first of the two steps.
  KvTransfer prefill(Request request) {
    request.max_tokens = 1;
    request.num_choices = 1;
    request.kv_transfer.emplace();
    const Answer answer = Client(*producer_, request).wait().at(0);
    EXPECT_TRUE(answer.last.kv_transfer.has_value());
    KvTransfer transfer = answer.last.kv_transfer.value_or(KvTransfer{});
    transfer.role = KvTransfer::Role::kConsume;
    return transfer;
  }
  void expect_alone(const Request& request, const std::map<int, Answer>& answers) {
    Request alone = request;
    alone.kv_transfer.reset();
    const auto engine = plain();
    const auto wanted = Client(*engine, alone).wait();
    ASSERT_EQ(answers.size(), wanted.size());
    for (const auto& [choice, answer] : wanted) {
      EXPECT_EQ(answers.at(choice).last.finished, FinishReason::kLength);
      EXPECT_EQ(answers.at(choice).tokens, answer.tokens) << "choice " << choice;
    }
  }
  // Until the engine says so, or a generous time has passed.
  static bool comes_true(const Engine& engine,
                         const std::function<bool(const EngineStats&)>& what) {
    for (int i = 0; i < 2000; ++i) {
      if (what(engine.stats())) {
        return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }
  static bool is_empty(const EngineStats& stats) {
    return stats.slots_used == 0 && stats.peers.consumer.pool.leases == 0 &&
           stats.peers.producer.port.exports == 0;
  }

  MovedClock clock_;  // of the consumer
  EngineOptions options_;
  std::string wire_type_ = "native";
  KvAdmit admit_ = GetParam();
  FakeVocabulary vocabulary_{kVocabSize};
  std::function<void()> at_step_;   // by an engine's thread
  std::vector<std::string> notes_;  // of the consumer
  std::unique_ptr<Engine> producer_;
  KvConsumer* kv_consumer_ = nullptr;
  std::unique_ptr<Engine> consumer_;
};

INSTANTIATE_TEST_SUITE_P(Admit, SplitEngine, testing::Values(KvAdmit::kFull, KvAdmit::kSparse),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST_P(SplitEngine, AnswersAreThoseOfOneProcess) {
  start_producer();
  start_consumer(KvLoadFailure::kFail);
  std::vector<Request> requests;
  std::vector<std::unique_ptr<Client>> clients;
  for (const int prompt_tokens : {2, 16, 17, 64, 65, 66, 129, 400}) {
    Request request = request_of(prompt_tokens, 20, prompt_tokens);
    request.kv_transfer = prefill(request);
    requests.push_back(request);
  }
  for (const Request& request : requests) {
    clients.push_back(std::make_unique<Client>(*consumer_, request));
  }
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto answers = clients[i]->wait();
    expect_alone(requests[i], answers);
    EXPECT_EQ(answers.at(0).last.cached_tokens, static_cast<int>(requests[i].prompt.size()));
  }
  EXPECT_TRUE(comes_true(*consumer_, is_empty));
  EXPECT_TRUE(comes_true(*producer_, is_empty));
  const EngineStats stats = consumer_->stats();
  EXPECT_EQ(stats.peers.consumer.admitted, 8);
  EXPECT_EQ(stats.peers.consumer.failed, 0);
  if (GetParam() == KvAdmit::kSparse) {
    EXPECT_LT(stats.peers.consumer.bytes_admitted, stats.peers.consumer.bytes_full / 2);
  }
}

TEST_P(SplitEngine, WhatCameInFourBitsIsNeverOfferedToOthers) {
  options_.prefix_cache = true;
  for (const char* wire_type : {"native", "r4"}) {
    wire_type_ = wire_type;
    start_producer();
    start_consumer(KvLoadFailure::kFail);
    // Within the window, and less than an extent: else native KV is not offered either.
    Request request = request_of(36, 8);
    request.kv_transfer = prefill(request);
    const auto answers = Client(*consumer_, request).wait();
    EXPECT_EQ(answers.at(0).last.finished, FinishReason::kLength);
    EXPECT_EQ(answers.at(0).last.cached_tokens, 36);
    // The same prompt and more, computed here.
    Request local = request;
    local.kv_transfer.reset();
    local.prompt.push_back(answers.at(0).tokens.front());
    const auto computed = Client(*consumer_, local).wait();
    expect_alone(local, computed);
    EXPECT_EQ(computed.at(0).last.cached_tokens, wire_type_ == "native" ? 32 : 0) << wire_type;
    EXPECT_TRUE(comes_true(*consumer_, is_empty));
    EXPECT_TRUE(comes_true(*producer_, is_empty));
  }
}

TEST_P(SplitEngine, AProducerOfFourBitsThatIsGoneIsComputedExactly) {
  wire_type_ = "r4";
  start_producer();
  start_consumer(KvLoadFailure::kRecompute);
  Request request = request_of(150, 10);
  request.kv_transfer = prefill(request);
  producer_.reset();
  expect_alone(request, Client(*consumer_, request).wait());
  EXPECT_TRUE(comes_true(*consumer_, is_empty));
}

TEST_P(SplitEngine, SeveralChoicesShareWhatCame) {
  start_producer();
  start_consumer(KvLoadFailure::kFail);
  Request request = request_of(200, 12);
  request.num_choices = 3;
  request.kv_transfer = prefill(request);
  const auto answers = Client(*consumer_, request).wait();
  expect_alone(request, answers);
  EXPECT_TRUE(comes_true(*consumer_, is_empty));
}

TEST_P(SplitEngine, MoreThanTheFastTierHoldsComeOneAfterAnother) {
  start_producer();
  start_consumer(KvLoadFailure::kFail, 260);  // two prompts of 400 tokens take 2 x 91 slots
  std::vector<Request> requests;
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 6; ++i) {
    requests.push_back(request_of(400, 30, i));
    requests.back().kv_transfer = prefill(requests.back());
  }
  for (const Request& request : requests) {
    clients.push_back(std::make_unique<Client>(*consumer_, request));
  }
  for (std::size_t i = 0; i < requests.size(); ++i) {
    expect_alone(requests[i], clients[i]->wait());
  }
  EXPECT_TRUE(comes_true(*consumer_, is_empty));
}

class FullSplitEngine : public SplitEngine {};
INSTANTIATE_TEST_SUITE_P(Admit, FullSplitEngine, testing::Values(KvAdmit::kFull));

TEST_P(FullSplitEngine, HoweverLongRoomIsWaitedForThatIsNoFailure) {
  start_producer();
  // One at a time: 900 tokens take 228 blocks, 700 take 176.
  start_consumer(KvLoadFailure::kFail, 200, 300);
  std::vector<Request> requests;
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 4; ++i) {
    requests.push_back(request_of(700, i == 0 ? 200 : 5, i));
    requests.back().kv_transfer = prefill(requests.back());
  }
  StepGate first_step(0);
  bool was_put_forward = false;
  std::chrono::milliseconds pause{0};
  at_step_ = [&] {
    first_step.pass();
    if (kv_consumer_->num_arrivals() == 3 && kv_consumer_->stats().pool.fetches == 0) {
      clock_.put_forward(std::chrono::hours(1));
      was_put_forward = true;
    } else if (!was_put_forward) {
      // The manifests of those that wait are on their way, and looked for between two steps; the
      // 199 steps of the first request give them half a minute.
      pause = std::min(pause + std::chrono::milliseconds(5), std::chrono::milliseconds(200));
      std::this_thread::sleep_for(pause);
    }
  };
  clients.push_back(std::make_unique<Client>(*consumer_, requests[0]));
  first_step.wait_until_held();
  for (std::size_t i = 1; i < requests.size(); ++i) {
    clients.push_back(std::make_unique<Client>(*consumer_, requests[i]));
  }
  first_step.open();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    expect_alone(requests[i], clients[i]->wait());
  }
  EXPECT_TRUE(comes_true(*consumer_, is_empty));
  EXPECT_TRUE(was_put_forward);
}

// The fake runner sees each bit of keys and values, so the 4 bits are others; but the same each
// time.
TEST_P(FullSplitEngine, FourBitsAreTheSameWheneverTheyAreRead) {
  wire_type_ = "r4";
  start_producer();
  std::vector<std::vector<TokenId>> answers;
  for (const auto& [admit, num_slots] :
       {std::pair(KvAdmit::kFull, kPoolSlots), std::pair(KvAdmit::kSparse, kPoolSlots),
        // Too small for everything: blocks are evicted, and read from the producer again.
        std::pair(KvAdmit::kSparse, std::int64_t{120})}) {
    admit_ = admit;
    start_consumer(KvLoadFailure::kFail, num_slots);
    Request request = request_of(700, 20);
    request.kv_transfer = prefill(request);
    const Answer answer = Client(*consumer_, request).wait().at(0);
    EXPECT_EQ(answer.last.finished, FinishReason::kLength);
    answers.push_back(answer.tokens);
    EXPECT_TRUE(comes_true(*consumer_, is_empty));
    const KvConsumerStats stats = consumer_->stats().peers.consumer;
    EXPECT_LT(static_cast<double>(stats.bytes_admitted),
              (admit == KvAdmit::kFull ? 0.4 : 0.1) * static_cast<double>(stats.bytes_full));
  }
  EXPECT_EQ(answers[1], answers[0]);
  EXPECT_EQ(answers[2], answers[0]);
}

TEST_P(SplitEngine, AProducerThatIsGoneIsAnErrorOrComputedAgain) {
  for (const KvLoadFailure policy : {KvLoadFailure::kFail, KvLoadFailure::kRecompute}) {
    start_producer();
    start_consumer(policy);
    Request request = request_of(150, 10);
    request.kv_transfer = prefill(request);
    producer_.reset();
    const auto answers = Client(*consumer_, request).wait();
    if (policy == KvLoadFailure::kFail) {
      EXPECT_EQ(answers.at(0).last.finished, FinishReason::kError);
      ASSERT_TRUE(answers.at(0).last.error.has_value());
      EXPECT_EQ(answers.at(0).last.error->code(), StatusCode::kUnavailable);
      EXPECT_TRUE(notes_.empty());
    } else {
      expect_alone(request, answers);
      ASSERT_EQ(notes_.size(), 1U);
      EXPECT_EQ(notes_[0].find(fmt::format("KV from 127.0.0.1 port {} is computed here instead: ",
                                           request.kv_transfer->remote_port)),
                0U)
          << notes_[0];
    }
    EXPECT_TRUE(comes_true(*consumer_, is_empty));
    EXPECT_EQ(consumer_->stats().peers.consumer.failed, 1);
  }
}

TEST_P(SplitEngine, AProducerThatDiesInTheMiddleLeavesRightAnswersOrErrors) {
  const bool is_sparse = GetParam() == KvAdmit::kSparse;
  for (const KvLoadFailure policy : {KvLoadFailure::kFail, KvLoadFailure::kRecompute}) {
    start_producer();
    // Sparse: 40 blocks in each of three layers stay with the producer, and each step reads all of
    // them; 119 slots cannot keep them.
    start_consumer(policy, is_sparse ? 120 : kPoolSlots);
    Request request = request_of(700, 200);
    request.kv_transfer = prefill(request);
    int num_steps = 0;
    at_step_ = [&] {
      if (++num_steps == 20) {
        producer_.reset();
      }
    };
    const auto answers = Client(*consumer_, request).wait();
    const bool is_recomputed = is_sparse && policy == KvLoadFailure::kRecompute;
    if (is_sparse && policy == KvLoadFailure::kFail) {
      const GenerationEvent& last = answers.at(0).last;
      EXPECT_EQ(last.finished, FinishReason::kError);
      EXPECT_EQ(last.error.value_or(Status(StatusCode::kInternal, "none")).code(),
                StatusCode::kUnavailable);
    } else {
      expect_alone(request, answers);  // what is admitted in full needs nobody
    }
    EXPECT_GE(num_steps, 20);
    EXPECT_EQ(consumer_->stats().peers.consumer.lost, is_sparse ? 1 : 0);
    EXPECT_EQ(notes_.size(), is_recomputed ? 1U : 0U);
    EXPECT_TRUE(comes_true(*consumer_, is_empty));
    const Request local = request_of(90, 10);
    expect_alone(local, Client(*consumer_, local).wait());
    at_step_ = {};
  }
}

TEST_P(SplitEngine, AnotherPromptThanThatOfTheKvIsRefused) {
  start_producer();
  start_consumer(KvLoadFailure::kFail);
  Request request = request_of(150, 10);
  request.kv_transfer = prefill(request);
  request.prompt[70] += 1;
  const auto answers = Client(*consumer_, request).wait();
  ASSERT_EQ(answers.at(0).last.finished, FinishReason::kError);
  EXPECT_NE(answers.at(0).last.error->message().find("differ from token 70"), std::string::npos)
      << answers.at(0).last.error->message();
  EXPECT_TRUE(comes_true(*consumer_, is_empty));
  EXPECT_TRUE(comes_true(*producer_, is_empty));
}

TEST_P(SplitEngine, APromptThatIsCompressedIsComputedHere) {
  compress_prompts(256);  // one window may be compressed, if slots are short
  start_producer();
  start_consumer(KvLoadFailure::kFail);
  Request request = request_of(150, 10);
  request.kv_transfer = prefill(request);
  const auto answers = Client(*consumer_, request).wait();
  expect_alone(request, answers);
  EXPECT_EQ(answers.at(0).last.cached_tokens, 0);
}

// A producer hands over the pairs of all positions, whatever its own requests ask for.
TEST_P(SplitEngine, APromptForAConsumerIsNotCompressed) {
  compress_prompts(32);
  for (const CompressArchive archive : {CompressArchive::kOff, CompressArchive::kR4}) {
    options_.compression.archive = archive;
    consumer_.reset();
    start_producer();
    start_consumer(KvLoadFailure::kFail);
    Request request = request_of(250, 10);
    request.kv_transfer = prefill(request);
    EXPECT_EQ(producer_->stats().compression.windows, 0);
    request.kv_compression.enabled = false;
    const auto answers = Client(*consumer_, request).wait();
    expect_alone(request, answers);
    EXPECT_EQ(answers.at(0).last.cached_tokens, 250);
  }
}

TEST_P(SplitEngine, PromptsThatEndWhereTheFirstWindowBeginsAreServed) {
  compress_prompts(32);
  start_producer();
  start_consumer(KvLoadFailure::kFail);
  for (const int prompt_tokens : {15, 16, 17, 18, 33}) {
    Request request = request_of(prompt_tokens, 120);
    request.kv_transfer = prefill(request);
    expect_alone(request, Client(*consumer_, request).wait());
  }
}

TEST_P(SplitEngine, WhatNobodyFetchesIsFreedWithItsLease) {
  start_producer(std::chrono::milliseconds(300));
  prefill(request_of(150, 10));
  EXPECT_TRUE(comes_true(*producer_, is_empty));
  EXPECT_EQ(producer_->stats().peers.producer.expired, 1);
}

TEST_P(SplitEngine, WhatIsCancelledUnfetchedIsFreedWithItsLease) {
  start_producer(std::chrono::milliseconds(300));
  start_consumer(KvLoadFailure::kFail);
  Request request = request_of(600, 400);
  request.kv_transfer = prefill(request);
  // While a step of another one is held: one turn begins the request and cancels it, and the first
  // connection has not shaken hands yet.
  StepGate gate(0);
  at_step_ = [&] { gate.pass(); };
  Client other(*consumer_, request_of(20, 1));
  gate.wait_until_held();
  Client client(*consumer_, request);
  consumer_->cancel(client.id());
  gate.open();
  EXPECT_EQ(client.wait().at(0).last.finished, FinishReason::kCancelled);
  EXPECT_EQ(other.wait().at(0).last.finished, FinishReason::kLength);
  EXPECT_TRUE(comes_true(*consumer_, is_empty));
  EXPECT_TRUE(comes_true(*producer_, is_empty));
}

TEST_P(SplitEngine, CancelledRequestsGiveEverythingBack) {
  start_producer();
  start_consumer(KvLoadFailure::kFail);
  const auto answer_one = [&] {
    Request request = request_of(40, 2);
    request.kv_transfer = prefill(request);
    EXPECT_EQ(Client(*consumer_, request).wait().at(0).last.finished, FinishReason::kLength);
  };
  answer_one();  // there is a connection now, so a lease is asked for before a cancel is seen
  for (int i = 0; i < 8; ++i) {
    Request request = request_of(600, 400, i);
    request.kv_transfer = prefill(request);
    // Before its first step, in another phase each time; or in a step. No later step begins.
    const bool is_running = i >= 4;
    StepGate gate(is_running ? 3 * (i - 4) : 0);
    at_step_ = [&] { gate.pass(); };
    Client client(*consumer_, request);
    if (is_running) {
      gate.wait_until_held();
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(i));
    }
    consumer_->cancel(client.id());
    gate.open();
    EXPECT_EQ(client.wait().at(0).last.finished, FinishReason::kCancelled);
    at_step_ = {};
  }
  answer_one();  // with it come leases that nobody waits for any more
  EXPECT_TRUE(comes_true(*consumer_, is_empty));
  EXPECT_TRUE(comes_true(*producer_, is_empty));
}

}  // namespace engine_peers_test
}  // namespace karez::test
