#include "model/llama_sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <set>
#include <vector>

#include "model/tokenizer.h"
#include "support/model_files.h"

namespace karez {
namespace {

using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int kContext = 128;

const Tokenizer& tokenizer() {
  static const auto loaded = Tokenizer::load(test::model_path(test::kSmolLm2));
  if (!loaded) {
    throw std::runtime_error(loaded.error().to_string());
  }
  return **loaded;
}

std::unique_ptr<Sampler> sampler(const SamplingParams& params) {
  auto made = make_llama_sampler(tokenizer(), params, kContext);
  EXPECT_TRUE(made) << made.error().to_string();
  return std::move(*made);
}

std::vector<float> flat_logits(float value = 0) {
  return std::vector<float>(static_cast<std::size_t>(tokenizer().vocab_size()), value);
}

TokenId token_of(const std::string& text) {
  const auto tokens = tokenizer().tokenize(text, false, false);
  EXPECT_TRUE(tokens && tokens->size() == 1) << text;
  return tokens->front();
}

TEST(LlamaSampler, ZeroAndNegativeTemperatureTakeTheMostLikelyToken) {
  std::vector<float> logits = flat_logits();
  logits[1234] = 1;
  for (const float temperature : {0.0F, -1.0F}) {
    EXPECT_EQ(sampler({.temperature = temperature})->sample(logits), 1234);
  }
}

TEST(LlamaSampler, ATinyTemperatureTakesTheMostLikelyToken) {
  std::vector<float> logits = flat_logits();
  logits[0] = 20;
  logits[1] = 19;
  logits[2] = 18;
  for (const float temperature : {1e-45F, 1e-38F, 1e-7F, 1e-6F, 1e-3F}) {
    const auto s = sampler({.temperature = temperature, .seed = 1});
    for (int i = 0; i < 20; ++i) {
      ASSERT_EQ(s->sample(logits), 0) << temperature;
    }
  }
}

TEST(LlamaSampler, TheSameSeedDrawsTheSameTokens) {
  const std::vector<float> logits = flat_logits();
  const auto draw = [&](std::uint32_t seed) {
    const auto s = sampler({.temperature = 1, .top_k = 0, .min_p = 0, .seed = seed});
    std::vector<TokenId> tokens;
    for (int i = 0; i < 8; ++i) {
      tokens.push_back(*s->sample(logits));
    }
    return tokens;
  };
  EXPECT_EQ(draw(7), draw(7));
  EXPECT_NE(draw(7), draw(8));
}

TEST(LlamaSampler, TopKLimitsTheChoice) {
  std::vector<float> logits = flat_logits();
  logits[5] = logits[6] = 1;
  const auto s = sampler({.temperature = 1, .top_k = 2, .top_p = 1, .min_p = 0, .seed = 1});
  std::set<TokenId> seen;
  for (int i = 0; i < 50; ++i) {
    seen.insert(*s->sample(logits));
  }
  EXPECT_EQ(seen, (std::set<TokenId>{5, 6}));
}

TEST(LlamaSampler, PenaltiesSeeThePromptAndTheAnswer) {
  std::vector<float> logits = flat_logits();
  logits[5] = 2;
  logits[6] = 1.5F;
  logits[7] = 1;
  for (const int last_n : {64, -1}) {
    const auto s = sampler({.temperature = 0, .repeat_last_n = last_n, .presence_penalty = 1});
    s->accept(5);
    EXPECT_EQ(s->sample(logits), 6);  // 5 is at 1.0 now
    EXPECT_EQ(s->sample(logits), 5);  // and 6 at 0.5
  }
  const auto off = sampler({.temperature = 0, .repeat_last_n = 0, .presence_penalty = 1});
  off->accept(5);
  EXPECT_EQ(off->sample(logits), 5);
}

TEST(LlamaSampler, PenaltiesLookBackAtNoMoreThanTheContext) {
  std::vector<float> logits = flat_logits();
  logits[5] = 2;
  logits[6] = 1.5F;
  logits[8] = 1.4F;
  const auto s = sampler({.temperature = 0, .repeat_last_n = 10 * kContext, .presence_penalty = 1});
  s->accept(5);
  for (int i = 0; i < kContext - 1; ++i) {
    s->accept(7);
  }
  EXPECT_EQ(s->sample(logits), 6) << "5 is the oldest that is seen";
  EXPECT_EQ(s->sample(logits), 5) << "and now it is not";
}

TEST(LlamaSampler, AGrammarLimitsTheAnswer) {
  const TokenId yes = token_of("yes");
  const TokenId no = token_of("no");
  std::vector<float> logits = flat_logits();
  logits[static_cast<std::size_t>(token_of("maybe"))] = 9;
  logits[static_cast<std::size_t>(no)] = 5;
  logits[static_cast<std::size_t>(yes)] = 4;
  for (const float temperature : {0.0F, 0.1F}) {
    const auto s =
        sampler({.temperature = temperature, .seed = 1, .grammar = R"(root ::= "yes" | "no")"});
    s->accept(token_of("maybe"));  // the prompt is not bound by it
    EXPECT_EQ(s->sample(logits), no);
    const auto end = s->sample(logits);
    ASSERT_TRUE(end) << end.error().to_string();
    EXPECT_TRUE(tokenizer().is_end_of_generation(*end));
  }
}

TEST(LlamaSampler, AGrammarThatAllowsNothingIsAnErrorAndNoAbort) {
  const auto s = sampler({.temperature = 0, .grammar = R"(root ::= "yes")"});
  std::vector<float> logits = flat_logits(-kInf);
  logits[static_cast<std::size_t>(token_of("no"))] = 0;
  const auto token = s->sample(logits);
  ASSERT_FALSE(token);
  EXPECT_THAT(token.error().message(), HasSubstr("the grammar allows no token"));
}

// As min_tokens forbids the end tokens.
TEST(LlamaSampler, NoForbiddenTokenIsTakenWhereTheGrammarAllowsNothingElse) {
  std::vector<float> logits = flat_logits();
  logits[static_cast<std::size_t>(token_of("yes"))] = 1;
  std::vector<float> no_end = logits;
  for (TokenId token = 0; token < tokenizer().vocab_size(); ++token) {
    if (tokenizer().is_end_of_generation(token)) {
      no_end[static_cast<std::size_t>(token)] = -kInf;
    }
  }
  for (const float temperature : {0.0F, 0.5F}) {
    const auto s = sampler(
        {.temperature = temperature, .top_k = 1, .seed = 1, .grammar = R"(root ::= "yes")"});
    ASSERT_EQ(s->sample(no_end), token_of("yes"));
    const auto token = s->sample(no_end);
    ASSERT_FALSE(token) << *token;
    EXPECT_THAT(token.error().message(), HasSubstr("the grammar allows no token"));
    const auto end = s->sample(logits);
    ASSERT_TRUE(end) << "the sampler is as it was";
    EXPECT_TRUE(tokenizer().is_end_of_generation(*end));
  }
}

// Each a doubles the ways in which the answer can end.
TEST(LlamaSampler, AGrammarThatBecomesTooAmbiguousEndsTheAnswer) {
  const auto s = sampler({.temperature = 0,
                          .grammar = "root ::= \"a\" root b | \"a\" root c | \"a\"\n"
                                     "b ::= \"b\"\nc ::= \"b\"\n"});
  std::vector<float> logits = flat_logits();
  logits[static_cast<std::size_t>(token_of("a"))] = 1;
  Expected<std::int32_t> token = s->sample(logits);
  for (int i = 0; i < 60 && token; ++i) {
    token = s->sample(logits);
  }
  ASSERT_FALSE(token);
  EXPECT_EQ(token.error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(token.error().message(), HasSubstr("too ambiguous"));
}

TEST(LlamaSampler, RefusesGrammarsThatDoNotParse) {
  for (const char* grammar : {"hello", "root ::= missing", "other ::= \"x\"", "root ::= \"",
                              "root ::= (", "root ::= root \"x\""}) {
    const auto made = make_llama_sampler(tokenizer(), {.grammar = grammar}, kContext);
    ASSERT_FALSE(made) << grammar;
    EXPECT_EQ(made.error().code(), StatusCode::kInvalidArgument);
  }
}

TEST(LlamaSampler, RefusesBadParameters) {
  const auto made = make_llama_sampler(tokenizer(), {.top_p = 2}, kContext);
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message(), HasSubstr("top-p is 2"));
}

TEST(LlamaSampler, BrokenLogitsAreAnError) {
  for (const float temperature : {0.0F, 1.0F}) {
    const auto s = sampler({.temperature = temperature});
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInf}) {
      std::vector<float> logits = flat_logits();
      logits[17] = bad;
      const auto token = s->sample(logits);
      ASSERT_FALSE(token);
      EXPECT_EQ(token.error().code(), StatusCode::kInternal);
      EXPECT_THAT(token.error().message(), HasSubstr("token 17"));
    }
    EXPECT_FALSE(s->sample(flat_logits(-kInf)));
    std::vector<float> one = flat_logits(-kInf);
    one[3] = -100;
    EXPECT_EQ(s->sample(one), 3);
  }
}

}  // namespace
}  // namespace karez
