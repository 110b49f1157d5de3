#include "engine/choice_stream.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/fake_vocabulary.h"

namespace karez::test {
namespace {

constexpr int kVocabSize = 30;

class ChoiceStreamTest : public testing::Test {
 protected:
  Request request_;
  FakeVocabulary vocabulary_{kVocabSize, {{20, "\xC3"}, {21, "\xA9"}, {22, "xyz"}}};

  // Like one with a grammar that allows a text of so many tokens.
  class CompleteAfter final : public Sampler {
   public:
    explicit CompleteAfter(int num_tokens) : tokens_left_(num_tokens) {}
    Expected<std::int32_t> sample(std::span<const float> logits) override {
      if (tokens_left_ > 0) {
        --tokens_left_;
        return greedy_.sample(logits);
      }
      if (logits[0] == -std::numeric_limits<float>::infinity()) {
        return fail(StatusCode::kInternal, "the grammar allows no token");
      }
      return 0;
    }
    void accept(std::int32_t /*token*/) override {}

   private:
    GreedySampler greedy_;
    int tokens_left_;
  };
  // Feeds logits that prefer the given tokens, the second one less, until the answer ends.
  std::vector<GenerationEvent> run(const std::vector<TokenId>& tokens, int max_tokens = 100,
                                   std::unique_ptr<Sampler> sampler = nullptr) {
    if (sampler == nullptr) {
      sampler = std::make_unique<GreedySampler>();
    }
    ChoiceStream stream(std::make_shared<const Request>(request_), 3, max_tokens, vocabulary_,
                        std::move(sampler));
    std::vector<GenerationEvent> events;
    std::vector<float> scratch;
    for (const TokenId token : tokens) {
      std::vector<float> logits(kVocabSize, 0.0F);
      logits[static_cast<std::size_t>(token)] = 5.0F;
      logits[1] += 1.0F;
      ChoiceStream::Step step = stream.next(logits, scratch);
      EXPECT_EQ(step.sampled.finished, stream.finished());
      if (step.event) {
        events.push_back(std::move(*step.event));
      }
      if (stream.finished()) {
        return events;
      }
    }
    events.push_back(stream.end(FinishReason::kCancelled));
    return events;
  }
  static std::string text_of(const std::vector<GenerationEvent>& events) {
    std::string text;
    for (const GenerationEvent& event : events) {
      text += event.text;
    }
    return text;
  }
};

TEST_F(ChoiceStreamTest, EndsAtAnEndTokenWithoutShowingIt) {
  const auto events = run({1, 2, 0});
  EXPECT_EQ(text_of(events), "bc");
  EXPECT_EQ(events.back().finished, FinishReason::kStop);
  EXPECT_EQ(events.back().generated_tokens, 3);
  EXPECT_TRUE(events.back().tokens.empty());
  EXPECT_EQ(events.back().choice, 3);
  EXPECT_EQ(events.front().tokens.front().chosen.token, 1);
}

TEST_F(ChoiceStreamTest, EndsAtTheLimit) {
  const auto events = run({1, 2, 3, 4}, 3);
  EXPECT_EQ(text_of(events), "bcd");
  EXPECT_EQ(events.back().finished, FinishReason::kLength);
}

TEST_F(ChoiceStreamTest, IgnoresEndTokensIfAsked) {
  request_.ignore_eos = true;
  EXPECT_EQ(text_of(run({1, 0, 2}, 3)), "bc");
}

TEST_F(ChoiceStreamTest, EndsAtItsOwnStopTokens) {
  request_.stop_token_ids = {4};
  request_.ignore_eos = true;
  const auto events = run({1, 0, 4, 5});
  EXPECT_EQ(text_of(events), "b");
  EXPECT_EQ(events.back().finished, FinishReason::kStop);
}

TEST_F(ChoiceStreamTest, MinTokensForbidsEveryEnd) {
  request_.min_tokens = 3;
  request_.stop_token_ids = {4};
  request_.sampling.stop = {"b"};
  // Where 0 and 4 are forbidden the second best, 1 ("b"), is taken, and does not stop it.
  const auto events = run({0, 4, 2, 1, 3});
  EXPECT_EQ(text_of(events), "bbc");
  EXPECT_EQ(events.back().stop_match, "b");
  EXPECT_EQ(events.back().generated_tokens, 4);
}

TEST_F(ChoiceStreamTest, AGrammarThatIsCompleteEndsTheAnswerBeforeMinTokens) {
  request_.min_tokens = 5;
  request_.sampling.grammar = "root ::= \"bc\"";
  const auto events = run({1, 2, 3, 3}, 100, std::make_unique<CompleteAfter>(2));
  EXPECT_EQ(text_of(events), "bc");
  EXPECT_EQ(events.back().finished, FinishReason::kStop);
  EXPECT_FALSE(events.back().error);
  EXPECT_EQ(events.back().generated_tokens, 3);
}

TEST_F(ChoiceStreamTest, WithoutAGrammarMinTokensHolds) {
  request_.min_tokens = 5;
  const auto events = run({1, 2, 3, 3}, 100, std::make_unique<CompleteAfter>(2));
  EXPECT_EQ(events.back().finished, FinishReason::kError);
}

TEST_F(ChoiceStreamTest, NothingOfAStopTextLeaks) {
  request_.sampling.stop = {"cde"};
  auto events = run({1, 2, 3, 4, 5});
  EXPECT_EQ(text_of(events), "b");
  EXPECT_EQ(events.back().finished, FinishReason::kStop);
  EXPECT_EQ(events.back().stop_match, "cde");
  events = run({1, 2, 3, 5, 0});
  EXPECT_EQ(text_of(events), "bcdf") << "what only began like it is shown";
  EXPECT_EQ(events.back().stop_match, "");
  request_.sampling.stop = {"b"};
  events = run({1, 2});
  EXPECT_EQ(text_of(events), "") << "at the very first token";
  request_.sampling.stop = {"y"};
  EXPECT_EQ(text_of(run({1, 22, 2})), "bx") << "inside a token";
}

TEST_F(ChoiceStreamTest, AStopTextAtTheLimitIsAStop) {
  request_.sampling.stop = {"cd"};
  EXPECT_EQ(run({1, 2, 3}, 3).back().finished, FinishReason::kStop);
}

TEST_F(ChoiceStreamTest, NeverSplitsACharacter) {
  const auto events = run({20, 21, 1, 0});
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].text, "\xC3\xA9");
  EXPECT_EQ(events[0].tokens.size(), 2U) << "the token that waited comes with its text";
  EXPECT_EQ(text_of(run({1, 20}, 2)), "b\xEF\xBF\xBD") << "half a character at the end";
}

TEST_F(ChoiceStreamTest, AddsBiases) {
  request_.logit_bias = {{5, 100.0F}, {6, -std::numeric_limits<float>::infinity()}};
  EXPECT_EQ(text_of(run({1, 6}, 2)), "ff");
}

TEST_F(ChoiceStreamTest, LogprobsAreThoseOfTheRawLogits) {
  request_.num_logprobs = 2;
  request_.logit_bias = {{7, 50.0F}};
  const auto events = run({2}, 1);
  const GeneratedToken& token = events.back().tokens.front();
  EXPECT_EQ(token.chosen.token, 7);
  EXPECT_LT(token.chosen.logprob, -3.0F);
  ASSERT_EQ(token.alternatives.size(), 2U);
  EXPECT_EQ(token.alternatives[0].token, 2);
  EXPECT_EQ(token.alternatives[0].bytes, "c");
  EXPECT_GT(token.alternatives[0].logprob, token.alternatives[1].logprob);
}

TEST_F(ChoiceStreamTest, ASamplerThatFailsEndsTheAnswer) {
  for (TokenId token = 0; token < kVocabSize; ++token) {
    request_.logit_bias.emplace_back(token, -std::numeric_limits<float>::infinity());
  }
  const auto events = run({1});
  EXPECT_EQ(events.back().finished, FinishReason::kError);
  ASSERT_TRUE(events.back().error);
  EXPECT_EQ(events.back().error->code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace karez::test
