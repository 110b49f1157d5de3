#include "engine/generator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "support/fake_model_runner.h"

namespace karez {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kVocabSize = 300;  // tokens 0 to 255 are bytes
constexpr TokenId kEnd = 256;
constexpr int kLayers = 2;

class GreedySampler final : public Sampler {
 public:
  Expected<std::int32_t> sample(std::span<const float> logits) override {
    return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
  }
  void accept(std::int32_t token) override { accepted.push_back(token); }
  std::vector<std::int32_t> accepted;
};

class FailingSampler final : public Sampler {
 public:
  Expected<std::int32_t> sample(std::span<const float>) override {
    return fail(StatusCode::kInternal, "no token is possible");
  }
  void accept(std::int32_t) override {}
};

TokenText byte_tokens() {
  return {[](TokenId t) { return t < 256 ? std::string(1, static_cast<char>(t)) : std::string(); },
          [](TokenId t) { return t == kEnd; }};
}

// A model that answers any prompt of prompt_tokens with these bytes and then ends.
FakeModelRunner::NextToken script(std::size_t prompt_tokens, std::string answer) {
  return [=](std::span<const TokenId> history) {
    const std::size_t at = history.size() - prompt_tokens;
    return at < answer.size() ? static_cast<unsigned char>(answer[at]) : kEnd;
  };
}

std::vector<TokenId> prompt_of(int num_tokens) {
  std::vector<TokenId> prompt(static_cast<std::size_t>(num_tokens));
  std::iota(prompt.begin(), prompt.end(), 0);
  for (TokenId& token : prompt) {
    token %= 200;
  }
  return prompt;
}

class GeneratorTest : public ::testing::Test {
 protected:
  // cap_blocks: full-attention blocks of 16 tokens, all layers.
  void set_up(int prompt_tokens, std::string answer, int cap_blocks = 64) {
    const KVCacheSpec spec = FakeModelRunner::kv_spec(kLayers);
    auto kv = KVCacheManager::create(
        spec, cap_blocks * kLayers * static_cast<std::int64_t>(spec.slot_bytes()));
    ASSERT_TRUE(kv) << kv.error().to_string();
    kv_ = std::move(*kv);
    runner_ = std::make_unique<FakeModelRunner>(
        kVocabSize, kLayers, script(static_cast<std::size_t>(prompt_tokens), std::move(answer)));
    prompt_ = prompt_of(prompt_tokens);
    options_.context_tokens = 1024;
    options_.chunk_tokens = 32;
    callbacks_.on_text = [this](std::string_view text) {
      shown_ += text;
      return true;
    };
  }

  Expected<GenerationResult> run() {
    auto result = Generator(*runner_, *kv_, byte_tokens())
                      .run(prompt_, options_, sampler_, callbacks_, cancelled_);
    EXPECT_EQ(kv_->stats().slots_used, 0) << "the sequence is closed on every way out";
    EXPECT_EQ(kv_->check_invariants(), "");
    return result;
  }

  std::unique_ptr<KVCacheManager> kv_;
  std::unique_ptr<FakeModelRunner> runner_;
  std::vector<TokenId> prompt_;
  GeneratorOptions options_;
  GeneratorCallbacks callbacks_;
  GreedySampler sampler_;
  std::atomic<bool> cancelled_ = false;
  std::string shown_;
};

TEST_F(GeneratorTest, AnswersUntilTheEndToken) {
  set_up(5, "hello");
  const auto result = run();
  ASSERT_TRUE(result) << result.error().to_string();
  EXPECT_EQ(shown_, "hello");
  EXPECT_EQ(result->finish_reason, FinishReason::kStop);
  EXPECT_EQ(result->prompt_tokens, 5);
  EXPECT_EQ(result->generated_tokens, 6);  // the end token counts
  EXPECT_EQ(result->decode_steps, 5);
  EXPECT_EQ(result->kv_used_bytes,
            kLayers * 1 * static_cast<std::int64_t>(kv_->spec().slot_bytes()));
}

TEST_F(GeneratorTest, RunsThePromptInChunksAndAsksForOneRowOfLogits) {
  set_up(70, "x");
  std::vector<int> progress;
  callbacks_.on_prefill = [&](int done, int total) {
    EXPECT_EQ(total, 70);
    progress.push_back(done);
  };
  ASSERT_TRUE(run());
  EXPECT_THAT(runner_->batch_rows(), ElementsAre(32, 32, 6, 1));
  EXPECT_EQ(runner_->output_rows(), 2);
  EXPECT_THAT(progress, ElementsAre(32, 64, 70));
}

TEST_F(GeneratorTest, ShowsThePromptToTheSampler) {
  set_up(40, "");
  ASSERT_TRUE(run());
  EXPECT_EQ(sampler_.accepted, prompt_);
}

TEST_F(GeneratorTest, TheSizeOfTheChunksDoesNotChangeTheAnswer) {
  for (const int chunk : {1, 15, 16, 17, 70, 1000}) {
    shown_.clear();
    set_up(70, "the same");
    options_.chunk_tokens = chunk;
    ASSERT_TRUE(run());
    EXPECT_EQ(shown_, "the same") << "chunk " << chunk;
  }
}

TEST_F(GeneratorTest, StopsAtMaxTokens) {
  set_up(5, "hello");
  options_.max_tokens = 3;
  const auto result = run();
  ASSERT_TRUE(result);
  EXPECT_EQ(shown_, "hel");
  EXPECT_EQ(result->finish_reason, FinishReason::kLength);
  EXPECT_EQ(result->decode_steps, 2);  // the last token is not fed back
}

TEST_F(GeneratorTest, StopsWhenTheContextIsFull) {
  set_up(5, std::string(100, 'a'));
  options_.context_tokens = 20;
  for (const int max_tokens : {-1, 500}) {
    shown_.clear();
    options_.max_tokens = max_tokens;
    const auto result = run();
    ASSERT_TRUE(result);
    EXPECT_EQ(result->finish_reason, FinishReason::kLength);
    EXPECT_EQ(result->prompt_tokens + result->generated_tokens, 20);
  }
}

TEST_F(GeneratorTest, StopsWhenTheCapIsFull) {
  set_up(5, std::string(100, 'a'), /*cap_blocks=*/2);
  const auto result = run();
  ASSERT_TRUE(result);
  EXPECT_EQ(result->finish_reason, FinishReason::kLength);
  EXPECT_EQ(shown_.size(), 32U - 5U + 1U);  // the last one needs no room
  EXPECT_EQ(result->kv_used_bytes, result->kv_cap_bytes);
}

TEST_F(GeneratorTest, StopTextsEndTheAnswerAndStayHidden) {
  set_up(5, "one two END three");
  options_.stop = {" END"};
  const auto result = run();
  ASSERT_TRUE(result);
  EXPECT_EQ(shown_, "one two");
  EXPECT_EQ(result->finish_reason, FinishReason::kStop);
}

TEST_F(GeneratorTest, AStopTextMayBeTheFirstToken) {
  set_up(5, "END");
  options_.stop = {"E"};
  const auto result = run();
  ASSERT_TRUE(result);
  EXPECT_EQ(shown_, "");
  EXPECT_EQ(result->generated_tokens, 1);
}

TEST_F(GeneratorTest, TheBeginningOfAStopTextIsShownIfTheAnswerEndsThere) {
  set_up(5, "one EN");
  options_.stop = {"END"};
  ASSERT_TRUE(run());
  EXPECT_EQ(shown_, "one EN");
}

TEST_F(GeneratorTest, NeverShowsHalfACharacter) {
  set_up(5, "\xF0\x9F\x98\x80");
  for (int max_tokens = 1; max_tokens <= 5; ++max_tokens) {
    shown_.clear();
    options_.max_tokens = max_tokens;
    ASSERT_TRUE(run());
    EXPECT_EQ(shown_, max_tokens < 4 ? "\xEF\xBF\xBD" : "\xF0\x9F\x98\x80") << max_tokens;
  }
}

TEST_F(GeneratorTest, CancelledInThePromptStopsBetweenChunks) {
  set_up(70, "hello");
  callbacks_.on_prefill = [&](int, int) { cancelled_ = true; };
  const auto result = run();
  ASSERT_TRUE(result);
  EXPECT_EQ(result->finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(result->prompt_tokens, 32);
  EXPECT_EQ(result->generated_tokens, 0);
}

TEST_F(GeneratorTest, CancelledInTheAnswerStopsAfterTheToken) {
  set_up(5, "hello");
  callbacks_.on_text = [&](std::string_view text) {
    shown_ += text;
    cancelled_ = true;
    return true;
  };
  const auto result = run();
  ASSERT_TRUE(result);
  EXPECT_EQ(result->finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(shown_, "h");
}

TEST_F(GeneratorTest, StopsWhenNobodyReads) {
  set_up(5, "hello");
  callbacks_.on_text = [&](std::string_view) { return false; };
  const auto result = run();
  ASSERT_TRUE(result);
  EXPECT_EQ(result->finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(result->generated_tokens, 1);
}

TEST_F(GeneratorTest, RefusesWhatCannotRunAndNamesTheFigures) {
  set_up(40, "hello", /*cap_blocks=*/2);
  const auto status = run();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.error().message(), HasSubstr("40 tokens plus 1 generated"));
  const auto needed = std::to_string(3 * kLayers * kv_->spec().slot_bytes());
  EXPECT_THAT(status.error().message(), HasSubstr("needs " + needed + " bytes"));
}

TEST_F(GeneratorTest, RefusesAnExplicitAnswerThatTheCapCannotHold) {
  set_up(20, "hello", /*cap_blocks=*/2);
  options_.max_tokens = 13;  // 32 tokens are stored, the last one is not
  ASSERT_TRUE(run());
  options_.max_tokens = 14;
  const auto refused = run();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kResourceExhausted);
}

TEST_F(GeneratorTest, RefusesAPromptThatFillsTheContext) {
  set_up(20, "hello");
  const std::map<int, bool> allowed = {{21, true}, {20, false}, {19, false}, {0, false}};
  for (const auto& [context, ok] : allowed) {
    options_.context_tokens = context;
    const auto result = run();
    EXPECT_EQ(result.has_value(), ok) << context;
    if (!ok) {
      EXPECT_EQ(result.error().code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(result.error().message(), HasSubstr("20 tokens"));
    }
  }
}

TEST_F(GeneratorTest, RefusesBadArguments) {
  set_up(20, "hello");
  const auto refuses = [&](std::string_view part) {
    const auto result = run();
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(result.error().message(), HasSubstr(part));
  };
  prompt_ = {};
  refuses("empty");
  prompt_ = {1, kVocabSize};
  refuses("token 300");
  prompt_ = {1, -1};
  refuses("token -1");
  prompt_ = {1};
  options_.max_tokens = 0;
  refuses("is 0");
  options_.max_tokens = -2;
  refuses("is -2");
  options_.max_tokens = -1;
  options_.chunk_tokens = 0;
  refuses("chunk");
}

TEST_F(GeneratorTest, PassesOnFailuresOfTheModelAndOfTheSampler) {
  for (const int call : {0, 2, 4}) {  // two prompt chunks, then tokens
    set_up(40, "hello");
    runner_->fail_from(call);
    const auto result = run();
    ASSERT_FALSE(result) << call;
    EXPECT_EQ(result.error().code(), StatusCode::kInternal);
  }
  set_up(5, "hello");
  FailingSampler failing;
  const auto result = Generator(*runner_, *kv_, byte_tokens())
                          .run(prompt_, options_, failing, callbacks_, cancelled_);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message(), "no token is possible");
}

TEST_F(GeneratorTest, RunsModelsWithSlidingWindowsInWhatTheirSequenceNeeds) {
  const KVCacheSpec spec = FakeModelRunner::kv_spec(kLayers, {0, 32});
  constexpr int kPrompt = 200;
  constexpr int kChunk = 32;
  auto kv = KVCacheManager::create(spec, kv_bytes_for_sequence(spec, kPrompt + 9, kChunk));
  ASSERT_TRUE(kv) << kv.error().to_string();
  set_up(kPrompt, std::string(50, 'a'));
  kv_ = std::move(*kv);
  options_.chunk_tokens = kChunk;
  options_.max_tokens = 10;
  const auto result = run();
  ASSERT_TRUE(result) << result.error().to_string();
  EXPECT_EQ(shown_, std::string(10, 'a'));
}

}  // namespace
}  // namespace karez
