// Random load on scheduler, KV store and prefix cache, with a model whose answers depend on every
// stored block (PagedFakeRunner). Each answer must be that of the request alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/compression_turns.h"
#include "engine/step_batch.h"
#include "kv/prefix_cache.h"
#include "sched/scheduler.h"
#include "support/paged_fake_runner.h"

namespace karez::test {
namespace scheduler_property_test {

constexpr int kVocabSize = 50;
constexpr TokenId kEnd = 0;

struct Load {
  std::string name;
  std::vector<int> windows;  // of the layers
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  int hash_bits = 128;  // 0: no prefix cache
  bool drafts = false;
  bool compresses = false;
};

// Which pairs are kept needs no queries, and each pair has its own.
CompressionOptions compression_options(int sequences_per_step) {
  CompressionOptions options;
  options.chunk = CompressChunk::kToken2Chunk;  // scattered pairs
  options.score = CompressScore::kRandom;
  options.sequences_per_step = sequences_per_step;
  return options;
}

void PrintTo(const Load& load, std::ostream* out) { *out << load.name; }

// The choices of a request differ, but each is a function of its history.
TokenId choose(std::span<const float> logits, int choice) {
  const auto best = std::ranges::max_element(logits) - logits.begin();
  return (static_cast<TokenId>(best) + choice) % kVocabSize;
}

// When windows of a sequence were compressed early because slots were short: by window.
using EarlyWindows = std::map<int, int>;

Publication publication_of(const CompressionSchedule& schedule, int window,
                           const EarlyWindows& early) {
  const Publication planned = schedule.publication(window);
  const auto found = early.find(window);
  return found == early.end() ? planned
                              : Publication{found->second, std::min<std::int64_t>(
                                                               found->second, planned.queries_end)};
}

// One token at a time, with all slots that it could want and nobody beside it.
std::vector<TokenId> answer_alone(const std::vector<int>& windows, std::vector<TokenId> history,
                                  int max_tokens, int choice, const CompressionSchedule& schedule,
                                  const EarlyWindows& early) {
  const KVCacheSpec spec = PagedFakeRunner::kv_spec(windows);
  auto kv = std::move(KVCacheManager::create(spec, 1 << 20).value());
  PagedFakeRunner runner(kVocabSize);
  const SequenceId sequence = kv->open();
  std::optional<WindowCompressor> compressor;
  if (schedule.is_on()) {
    compressor.emplace(*kv, nullptr, compression_options(1), WindowCompressor::Attention{});
  }
  int window = 0;
  std::vector<TokenId> answer;
  for (std::size_t i = 0; i < history.size(); ++i) {
    EXPECT_TRUE(kv->extend(sequence, 1));
    StepPlan plan;
    PlannedSequence planned;
    planned.kv = sequence;
    planned.first_position = static_cast<int>(i);
    planned.tokens = std::span(history).subspan(i, 1);
    planned.wants_logits = true;
    plan.sequences.push_back(planned);
    const auto logits = runner.forward(make_batch(plan, *kv, nullptr), *kv);
    const int num_tokens = static_cast<int>(i) + 1;
    const Publication next = publication_of(schedule, window, early);
    if (schedule.is_on() && num_tokens == next.position) {
      int units = 1000;
      EXPECT_EQ(compressor->work({sequence, num_tokens, schedule, window, next}, units),
                WindowCompressor::Outcome::kPublished);
      ++window;
    }
    if (i + 1 < history.size()) {
      continue;
    }
    answer.push_back(choose(*logits, choice));
    if (answer.back() == kEnd || static_cast<int>(answer.size()) == max_tokens) {
      break;
    }
    history.push_back(answer.back());
  }
  return answer;
}

struct Running {
  Request request;
  CompressionSchedule compression;
  std::map<int, EarlyWindows> early;  // by choice
  std::uint64_t arrival = 0;
  std::map<int, std::vector<TokenId>> answers;  // of choices that have begun
  std::map<int, bool> finished;
  std::map<int, std::vector<TokenId>> expected;  // with drafts: answers alone, made when needed
  bool is_done() const { return static_cast<int>(finished.size()) == request.num_choices; }
};

class Driver {
 public:
  Driver(const Load& load, unsigned seed) : load_(load), random_(seed) {
    const KVCacheSpec spec = PagedFakeRunner::kv_spec(load.windows);
    const auto block_slots = static_cast<int>(load.windows.size());
    // One that is alone without room for a window's new blocks goes on without compression: there
    // is room for the longest. Layers with a window need less.
    const int enough = block_slots == 1 ? 21 : 16;
    const int num_blocks = load.compresses ? number(enough, enough + 4) : number(3, 40);
    const int num_slots = block_slots * num_blocks + number(0, block_slots - 1);
    kv_ = std::move(
        KVCacheManager::create(spec, static_cast<std::int64_t>(spec.slot_bytes()) * num_slots)
            .value());
    if (load.hash_bits > 0) {
      cache_ = std::make_unique<PrefixCache>(*kv_, "fake", load.hash_bits);
    }
    options_ = {load.policy, number(1, 64), number(1, 8), number(1, 40)};
    if (load.compresses) {
      compressor_.emplace(*kv_, nullptr, compression_options(number(1, 3)),
                          WindowCompressor::Attention{});
    }
    scheduler_ = std::make_unique<Scheduler>(*kv_, cache_.get(), options_,
                                             compressor_ ? &*compressor_ : nullptr);
    for (int i = 0; i < 3; ++i) {
      bases_.push_back(random_tokens(200));
    }
  }

  void run(int num_requests) {
    int left = num_requests;
    while (left > 0 || scheduler_->has_work()) {
      while (left > 0 && chance(scheduler_->has_work() ? (load_.compresses ? 60 : 20) : 100)) {
        submit();
        --left;
      }
      if (chance(3) && !running_.empty()) {
        cancel(
            std::next(running_.begin(), number(0, static_cast<int>(running_.size()) - 1))->first);
      }
      if (scheduler_->has_work()) {
        step();
      }
      if (testing::Test::HasFatalFailure()) {
        return;
      }
    }
    EXPECT_TRUE(running_.empty());
    EXPECT_EQ(kv_->stats().slots_used, 0);
    EXPECT_EQ(kv_->slots_available(), kv_->stats().slots_total);
    EXPECT_EQ(kv_->check_invariants(), "");
    if (cache_ != nullptr) {
      EXPECT_EQ(cache_->check_invariants(), "");
    }
  }

  std::int64_t preemptions() const { return scheduler_->stats().preemptions; }
  std::int64_t hits() const { return scheduler_->stats().prefix_hits_tokens; }
  std::int64_t forks() const { return forks_; }
  std::int64_t ended() const { return ended_; }
  std::int64_t drafted() const { return drafted_; }
  std::int64_t accepted() const { return accepted_; }
  int early_windows() const { return early_windows_; }
  std::int64_t windows() const { return compressor_ ? compressor_->stats().windows : 0; }

 private:
  int number(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool chance(int percent) { return number(1, 100) <= percent; }
  std::vector<TokenId> random_tokens(int count) {
    std::vector<TokenId> tokens(static_cast<std::size_t>(count));
    std::ranges::generate(tokens, [&] { return number(0, kVocabSize - 1); });
    return tokens;
  }

  // Prompts share beginnings of all lengths, and sometimes all of it.
  void submit() {
    Running running;
    Request& request = running.request;
    request.id = ++last_id_;
    const auto& base = bases_[static_cast<std::size_t>(number(0, 2))];
    request.prompt.assign(base.begin(), base.begin() + number(1, 120));
    if (chance(50)) {
      const auto tail = random_tokens(number(1, 30));
      request.prompt.insert(request.prompt.end(), tail.begin(), tail.end());
    }
    while (!scheduler_->can_ever_fit(static_cast<int>(request.prompt.size()))) {
      request.prompt.resize(request.prompt.size() / 2 + 1);
    }
    request.max_tokens = number(1, 40);
    request.num_choices = chance(20) ? number(1, std::min(3, options_.max_num_seqs)) : 1;
    request.priority = number(0, 2);
    request.use_prefix_cache = chance(90);
    request.cache_salt = chance(20) ? "salt" : "";
    running.arrival = ++arrivals_;
    if (load_.compresses && chance(80)) {
      request.max_tokens = number(60, 120);
      const auto prompt_blocks = (static_cast<int>(request.prompt.size()) + 15) / 16;
      running.compression.first_position = kBlockSize * (chance(70) ? prompt_blocks : number(0, 1));
      const int window_blocks = number(2, 4);
      running.compression.window_tokens = kBlockSize * window_blocks;
      running.compression.kept_tokens = kBlockSize * number(1, window_blocks - 1);
      running.compression.recent_tokens = number(0, 40);
    }
    scheduler_->add(request, running.compression);
    running_.emplace(request.id, std::move(running));
  }

  void cancel(RequestId id) {
    scheduler_->cancel(id);
    check_answers(running_.at(id));
    running_.erase(id);
    ASSERT_EQ(kv_->check_invariants(), "");
  }

  // Of the oldest request the first choice that goes on.
  std::pair<RequestId, int> oldest() const {
    const Running& running = running_.begin()->second;
    int choice = 0;
    while (running.finished.contains(choice)) {
      ++choice;
    }
    return {running.request.id, choice};
  }

  void step() {
    const auto [oldest_id, oldest_choice] = oldest();
    if (compressor_) {
      compress();
    }
    if (load_.drafts) {
      give_drafts();
    }
    held_ = scheduler_->compression_candidates();
    const StepPlan plan = scheduler_->schedule();
    bool oldest_progresses = false;
    for (const PlannedSequence& planned : plan.sequences) {
      oldest_progresses |= planned.request == oldest_id && planned.choice == oldest_choice;
    }
    for (const EndedSequence& ended : plan.ended) {
      oldest_progresses |= ended.request == oldest_id && ended.choice == oldest_choice;
      end(ended);
    }
    // It may have been overtaken while it waited for a prefix; from its start on it never stops.
    if (load_.policy == SchedulingPolicy::kFcfs && !is_held() &&
        oldest_started_ == std::pair(oldest_id, oldest_choice)) {
      ASSERT_TRUE(oldest_progresses) << "request " << oldest_id;
    }
    if (oldest_progresses) {
      oldest_started_ = {oldest_id, oldest_choice};
    }
    ASSERT_FALSE(plan.sequences.empty() && plan.ended.empty() && !is_held());
    ASSERT_LE(plan.num_tokens, options_.max_num_batched_tokens);
    ASSERT_LE(scheduler_->stats().num_running, options_.max_num_seqs);
    if (chance(1) && !plan.sequences.empty()) {
      fail_step(plan);
      return;
    }
    StepOutput output;
    if (!plan.sequences.empty()) {
      const auto logits = runner_.forward(
          make_batch(plan, *kv_, nullptr, false, compressor_ ? &*compressor_ : nullptr), *kv_);
      ASSERT_TRUE(logits);
      sample(plan, *logits, output);
    }
    scheduler_->update(plan, output);
    std::erase_if(running_, [&](const auto& entry) {
      if (entry.second.is_done()) {
        check_answers(entry.second);
      }
      return entry.second.is_done();
    });
    ASSERT_EQ(kv_->check_invariants(), "");
    if (cache_ != nullptr) {
      ASSERT_EQ(cache_->check_invariants(), "");
    }
  }

  // A sequence waits for its window.
  bool is_held() const { return std::ranges::any_of(held_, &CompressionCandidate::is_due); }

  void compress() {
    const std::vector<CompressionCandidate> before = scheduler_->compression_candidates();
    const auto may_recompute = [](RequestId) { return true; };
    ASSERT_TRUE(CompressionTurns(*compressor_).run(*scheduler_, may_recompute).empty())
        << "nothing is lost";
    for (const CompressionCandidate& now : scheduler_->compression_candidates()) {
      EarlyWindows& early = running_.at(now.request).early[now.choice];
      const auto old = std::ranges::find(before, now.key, &CompressionCandidate::key);
      const auto note = [&](int window, std::int64_t position) {
        if (position < now.schedule.publication_of(window)) {
          early_windows_ += early.contains(window) ? 0 : 1;
          ASSERT_EQ(early.try_emplace(window, static_cast<int>(position)).first->second, position)
              << "once and for all";
        }
      };
      if (old != before.end() && old->window < now.window) {
        note(old->window, old->num_tokens);
      }
      note(now.window, now.publication.position);
    }
  }

  // Right ones, wrong ones, and right ones up to some place; beyond the answer's end too.
  void give_drafts() {
    for (const DraftCandidate& candidate : scheduler_->draft_candidates()) {
      Running& running = running_.at(candidate.request);
      ASSERT_LT(running.request.prompt.size(), candidate.tokens.size());
      if (chance(25)) {
        continue;
      }
      auto& expected = running.expected[candidate.choice];
      if (expected.empty()) {
        expected =
            answer_alone(load_.windows, running.request.prompt, running.request.max_tokens,
                         candidate.choice, running.compression, running.early[candidate.choice]);
      }
      std::vector<TokenId> drafts;
      const auto known = candidate.tokens.size() - running.request.prompt.size();
      for (std::size_t i = known; i < expected.size() && drafts.size() < 20; ++i) {
        drafts.push_back(chance(85) ? expected[i] : number(0, kVocabSize - 1));
      }
      drafts.resize(static_cast<std::size_t>(number(1, 24)), 7);
      const int num_hints = chance(20) ? number(0, static_cast<int>(drafts.size())) : 0;
      scheduler_->set_drafts(candidate.key, {std::move(drafts), num_hints});
    }
  }

  // The samples after each verified row, as long as they are what the next row was computed for.
  void verify(const PlannedSequence& planned, std::span<const float> logits, StepOutput& output) {
    Running& running = running_.at(planned.request);
    std::vector<TokenId>& answer = running.answers[planned.choice];
    drafted_ += planned.num_verified_drafts();
    for (std::size_t row = 0;; ++row) {
      const TokenId token =
          choose(logits.subspan(row * std::size_t{kVocabSize}, kVocabSize), planned.choice);
      answer.push_back(token);
      const bool finished =
          token == kEnd || static_cast<int>(answer.size()) == running.request.max_tokens;
      if (finished) {
        running.finished[planned.choice] = true;
      }
      output.samples.push_back({token, finished});
      if (finished || static_cast<int>(row) == planned.num_verified_drafts() ||
          planned.drafts[row] != token) {
        output.accepted_drafts.back() = static_cast<int>(row);
        accepted_ += static_cast<int>(row);
        return;
      }
    }
  }

  void sample(const StepPlan& plan, std::span<const float> logits, StepOutput& output) {
    for (const PlannedSequence& planned : plan.sequences) {
      output.accepted_drafts.push_back(0);
      if (!planned.drafts.empty()) {
        ASSERT_TRUE(planned.wants_logits && planned.num_choices == 1);
        const auto rows = static_cast<std::size_t>(1 + planned.num_verified_drafts());
        verify(planned, logits.first(rows * kVocabSize), output);
        logits = logits.subspan(rows * kVocabSize);
        continue;
      }
      Running& running = running_.at(planned.request);
      const int prompt_tokens = static_cast<int>(running.request.prompt.size());
      ASSERT_GE(planned.cached_tokens, 0);
      ASSERT_LT(planned.cached_tokens, prompt_tokens);
      ASSERT_TRUE(running.request.use_prefix_cache || planned.cached_tokens == 0);
      if (!planned.wants_logits) {
        continue;
      }
      forks_ += planned.num_choices - 1;
      for (int i = 0; i < planned.num_choices; ++i) {
        const int choice = planned.choice + i;
        running.early[choice] = EarlyWindows(running.early[planned.choice]);
        const TokenId token = choose(logits.first(kVocabSize), choice);
        std::vector<TokenId>& answer = running.answers[choice];
        answer.push_back(token);
        const bool finished =
            token == kEnd || static_cast<int>(answer.size()) == running.request.max_tokens;
        if (finished) {
          running.finished[choice] = true;
        }
        output.samples.push_back({token, finished});
      }
      logits = logits.subspan(kVocabSize);
    }
  }

  // Only a sequence that needs more than the whole fast tier is ended.
  void end(const EndedSequence& ended) {
    Running& running = running_.at(ended.request);
    ++ended_;
    for (int choice = ended.choice; choice < ended.choice + ended.num_choices; ++choice) {
      running.finished[choice] = true;
      const auto length = running.request.prompt.size() + running.answers[choice].size();
      ASSERT_GT(kv_->spec().slots_for_sequence(static_cast<std::int64_t>(length), 1),
                kv_->stats().slots_total);
    }
  }

  void fail_step(const StepPlan& plan) {
    // Its KV is garbage.
    std::vector<std::pair<RequestId, int>> gone;
    for (const PlannedSequence& planned : plan.sequences) {
      for (int i = 0; i < planned.num_choices; ++i) {
        gone.emplace_back(planned.request, planned.choice + i);
      }
    }
    scheduler_->update_failed(plan);
    for (const auto& [id, choice] : gone) {
      running_.at(id).finished[choice] = true;
    }
    std::erase_if(running_, [](const auto& entry) { return entry.second.is_done(); });
    ASSERT_EQ(kv_->check_invariants(), "");
  }

  // Whatever there is of each answer is the beginning of the answer alone.
  void check_answers(const Running& running) const {
    for (const auto& [choice, answer] : running.answers) {
      const auto early = running.early.find(choice);
      const auto alone = answer_alone(
          load_.windows, running.request.prompt, static_cast<int>(answer.size()), choice,
          running.compression, early == running.early.end() ? EarlyWindows() : early->second);
      ASSERT_EQ(answer, alone) << "request " << running.request.id << " choice " << choice;
    }
  }

  Load load_;
  std::mt19937 random_;
  SchedulerOptions options_;
  std::unique_ptr<KVCacheManager> kv_;
  std::unique_ptr<PrefixCache> cache_;
  std::optional<WindowCompressor> compressor_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<CompressionCandidate> held_;  // in the step at hand, and others
  PagedFakeRunner runner_{kVocabSize};
  std::vector<std::vector<TokenId>> bases_;
  std::map<RequestId, Running> running_;
  RequestId last_id_ = 0;
  std::uint64_t arrivals_ = 0;
  std::pair<RequestId, int> oldest_started_;
  int early_windows_ = 0;
  std::int64_t forks_ = 0;
  std::int64_t ended_ = 0;
  std::int64_t drafted_ = 0;   // drafts that were verified
  std::int64_t accepted_ = 0;  // of these
};

class SchedulerLoad : public testing::TestWithParam<Load> {};

TEST_P(SchedulerLoad, EveryAnswerIsThatOfTheRequestAlone) {
  std::int64_t preemptions = 0;
  std::int64_t hits = 0;
  std::int64_t forks = 0;
  std::int64_t ended = 0;
  std::int64_t drafted = 0;
  std::int64_t accepted = 0;
  std::int64_t windows = 0;
  int early_windows = 0;
  // Where windows are compressed few are preempted.
  const unsigned num_seeds = GetParam().compresses ? 300 : 100;
  for (unsigned seed = 0; seed < num_seeds; ++seed) {
    SCOPED_TRACE(seed);
    Driver driver(GetParam(), seed);
    driver.run(25);
    if (HasFailure()) {
      return;
    }
    preemptions += driver.preemptions();
    hits += driver.hits();
    forks += driver.forks();
    ended += driver.ended();
    drafted += driver.drafted();
    accepted += driver.accepted();
    windows += driver.windows();
    early_windows += driver.early_windows();
  }
  // The load reaches what it is for.
  if (GetParam().drafts) {
    EXPECT_GT(accepted, 1000);
    EXPECT_GT(drafted - accepted, 1000);
  }
  EXPECT_EQ(windows > 300, GetParam().compresses) << windows;
  EXPECT_EQ(early_windows > 10, GetParam().compresses) << early_windows;
  EXPECT_GT(preemptions, 5);
  EXPECT_GT(forks, 50);
  if (std::ranges::count(GetParam().windows, 0) > 0 && !GetParam().compresses) {
    EXPECT_GT(ended, 5);  // windows alone fit into any pool
  }
  if (GetParam().hash_bits > 0) {
    EXPECT_GT(hits, 1000);
  } else {
    EXPECT_EQ(hits, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Random, SchedulerLoad,
    testing::Values(
        Load{"FullAttention", {0}},                                           //
        Load{"WithoutPrefixCache", {0}, SchedulingPolicy::kFcfs, 0},          //
        Load{"ByPriority", {0}, SchedulingPolicy::kPriority},                 //
        Load{"CollidingHashes", {0, 0}, SchedulingPolicy::kFcfs, 8},          //
        Load{"WindowAndFull", {40, 0}},                                       //
        Load{"NarrowWindows", {5, 0, 5}, SchedulingPolicy::kPriority},        //
        Load{"WindowsOnly", {16, 33}},                                        //
        Load{"WindowAndFullColliding", {40, 0}, SchedulingPolicy::kFcfs, 4},  //
        Load{"WindowWithoutPrefixCache", {24, 0}, SchedulingPolicy::kFcfs, 0},
        Load{"Drafts", {0}, SchedulingPolicy::kFcfs, 128, true},
        Load{"DraftsInWindows", {16, 5}, SchedulingPolicy::kFcfs, 128, true},
        Load{"DraftsOfAll", {40, 0}, SchedulingPolicy::kPriority, 8, true},
        Load{"Compressed", {0}, SchedulingPolicy::kFcfs, 128, false, true},
        Load{"CompressedByPriority", {0, 40}, SchedulingPolicy::kPriority, 8, false, true},
        Load{"CompressedWithDrafts", {40, 0}, SchedulingPolicy::kFcfs, 0, true, true}),
    [](const auto& load) { return load.param.name; });

}  // namespace scheduler_property_test
}  // namespace karez::test
