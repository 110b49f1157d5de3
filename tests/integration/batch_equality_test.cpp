// The same tokens give the same answer however they come: whole or in chunks, alone or among
// others, after a fork, on any number of threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "support/model_files.h"
#include "support/oracle.h"

namespace karez::test {
namespace {

constexpr int kPromptTokens = 450;
constexpr int kGenerated = 24;
// Our attention gives the same bits in all these cases. ggml's products do not: one row and many
// rows take different kernels, which sum in different order; rounding activations to 8 bits then
// amplifies the last bits (see oracle_logits_test.cpp).
constexpr double kMaxDifference = 6.0;
constexpr double kMeanDifference = 0.35;
constexpr float kMarginTolerance = 0.75F;

using Logits = std::vector<float>;  // [kGenerated][vocab_size]

class BatchEquality : public testing::Test {
 protected:
  void SetUp() override {
    path_ = model_path(kSmolLm2);
    text_ = real_text(path_, kPromptTokens + kGenerated);
  }

  std::span<const TokenId> prompt() const { return std::span(text_).first(kPromptTokens); }

  static void read(TeacherForced& model, int sequence, std::span<const TokenId> tokens,
                   std::size_t chunk_tokens) {
    while (!tokens.empty()) {
      const auto part = tokens.first(std::min(chunk_tokens, tokens.size()));
      const std::vector<Chunk> chunks = {Chunk{sequence, {part.begin(), part.end()}, false}};
      model.forward(chunks);
      tokens = tokens.subspan(part.size());
    }
  }

  // The continuation row by row; logits of all its rows.
  Logits continue_alone(TeacherForced& model, int sequence) const {
    Logits all;
    for (const TokenId token : std::span(text_).subspan(kPromptTokens)) {
      const std::vector<Chunk> chunks = {Chunk{sequence, {token}, true}};
      const auto logits = model.forward(chunks);
      all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
  }

  Logits fresh(std::size_t chunk_tokens, int num_threads) const {
    const auto model =
        paged_model(path_, {.num_threads = num_threads, .max_tokens = kPromptTokens + kGenerated});
    read(*model, 0, prompt(), chunk_tokens);
    return continue_alone(*model, 0);
  }

  static void expect_same_within_rounding(const Logits& one, const Logits& other) {
    Agreement agreement;
    agreement.add(one, other, static_cast<int>(other.size()) / kGenerated);
    std::cout << "  " << agreement.to_string() << std::endl;
    EXPECT_LE(agreement.max_difference(), kMaxDifference);
    EXPECT_LE(agreement.mean_difference(), kMeanDifference);
    EXPECT_LE(agreement.max_disagreeing_margin(), kMarginTolerance);
  }

  std::string path_;
  std::vector<TokenId> text_;
};

TEST_F(BatchEquality, ThePromptMayComeInChunksOfAnySize) {
  const Logits whole = fresh(kPromptTokens, 2);
  for (const std::size_t chunk : {1U, 7U, 64U}) {
    SCOPED_TRACE(chunk);
    expect_same_within_rounding(fresh(chunk, 2), whole);
  }
}

TEST_F(BatchEquality, TheNumberOfThreadsChangesNoBit) {
  const Logits two = fresh(64, 2);
  EXPECT_EQ(fresh(64, 1), two);
  EXPECT_EQ(fresh(64, 3), two);
}

TEST_F(BatchEquality, AForkContinuesAsAFreshSequenceDoes) {
  const Logits expected = fresh(64, 2);
  const auto model =
      paged_model(path_, {.max_tokens = kPromptTokens + kGenerated, .num_sequences = 2});
  read(*model, 0, prompt(), 64);
  model->fork(0, 1);
  // Parent and child share their last block, which is not full; the first to write copies it.
  EXPECT_EQ(continue_alone(*model, 1), expected);
  EXPECT_EQ(continue_alone(*model, 0), expected);
}

TEST_F(BatchEquality, OthersInTheBatchDoNotMatter) {
  const Logits alone = fresh(64, 2);
  constexpr int kOthers = 7;
  const auto model =
      paged_model(path_, {.max_tokens = kPromptTokens + kGenerated, .num_sequences = kOthers + 1});
  read(*model, 0, prompt(), 64);
  for (int other = 1; other <= kOthers; ++other) {
    const auto length = static_cast<std::size_t>(other * 37);
    read(*model, other, std::span(text_).subspan(3 * static_cast<std::size_t>(other), length), 64);
  }
  Logits all;
  for (std::size_t i = kPromptTokens; i < text_.size(); ++i) {
    std::vector<Chunk> chunks = {Chunk{0, {text_[i]}, true}};
    for (int other = 1; other <= kOthers; ++other) {
      chunks.push_back({other, {text_[i - static_cast<std::size_t>(other)]}, false});
    }
    const auto logits = model->forward(chunks);
    all.insert(all.end(), logits.begin(), logits.end());
  }
  expect_same_within_rounding(all, alone);
}

TEST_F(BatchEquality, GreedyTokensAreTheSameForEveryChunkSize) {
  std::vector<std::vector<TokenId>> generated;
  for (const std::size_t chunk : {1U, 7U, 64U, 512U}) {
    const auto model = paged_model(path_, {.max_tokens = kPromptTokens + kGenerated});
    read(*model, 0, prompt().first(kPromptTokens - 1), chunk);
    std::vector<TokenId> tokens = {text_[kPromptTokens - 1]};
    for (int i = 0; i < kGenerated; ++i) {
      const std::vector<Chunk> step = {Chunk{0, {tokens.back()}, true}};
      tokens.push_back(argmax(model->forward(step)));
    }
    generated.push_back(tokens);
  }
  for (const std::vector<TokenId>& tokens : generated) {
    EXPECT_EQ(tokens, generated.front());
  }
}

}  // namespace
}  // namespace karez::test
