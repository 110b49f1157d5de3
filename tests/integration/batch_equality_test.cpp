// The same tokens give the same answer however they come: whole or in chunks, alone or among
// others, after a fork, on any number of threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "support/model_files.h"
#include "support/oracle.h"
#include "support/random_model.h"
#include "support/temporary_file.h"

namespace karez::test {
namespace {

constexpr int kPromptTokens = 450;
constexpr int kGenerated = 24;
// Our attention gives the same bits in all these cases. ggml's products need not: it may choose
// another kernel for many rows than for one, which sums in another order. So cases with other batch
// shapes are compared with a model in f32, where that shows in the last bits only.
constexpr double kMaxDifference = 1e-4;
constexpr double kMeanDifference = 1e-5;

using Logits = std::vector<float>;  // [kGenerated][vocab_size]

// A real model, or a small one with random weights in f32.
class BatchEquality : public testing::TestWithParam<bool> {
 protected:
  static bool is_real() { return GetParam(); }

  void SetUp() override {
    if (is_real()) {
      path_ = model_path(kSmolLm2);
      text_ = real_text(path_, kPromptTokens + kGenerated);
      return;
    }
    RandomModelSpec spec;
    spec.head_dim = 64;
    spec.num_heads = 6;
    spec.num_layers = 4;
    spec.hidden_size = 256;
    random_model(spec).write(file_.path());
    path_ = file_.path();
    for (int i = 0; i < kPromptTokens + kGenerated; ++i) {
      text_.push_back(i * i % spec.vocab_size);
    }
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
    if (is_real()) {
      // Quantised weights: 8-bit rounding amplifies last bits, as in oracle_logits_test.cpp.
      constexpr double kMinTop1Share = 0.8;
      EXPECT_GE(agreement.top1_share(), kMinTop1Share);
    } else {
      EXPECT_LE(agreement.max_difference(), kMaxDifference);
      EXPECT_LE(agreement.mean_difference(), kMeanDifference);
    }
  }

  TemporaryFile file_{"batch_equality.gguf"};
  std::string path_;
  std::vector<TokenId> text_;
};

TEST_P(BatchEquality, ThePromptMayComeInChunksOfAnySize) {
  const Logits whole = fresh(kPromptTokens, 2);
  for (const std::size_t chunk : {1U, 7U, 64U}) {
    SCOPED_TRACE(chunk);
    expect_same_within_rounding(fresh(chunk, 2), whole);
  }
}

TEST_P(BatchEquality, TheNumberOfThreadsChangesNoBit) {
  const Logits two = fresh(64, 2);
  EXPECT_EQ(fresh(64, 1), two);
  EXPECT_EQ(fresh(64, 3), two);
}

TEST_P(BatchEquality, AForkContinuesAsAFreshSequenceDoes) {
  const Logits expected = fresh(64, 2);
  const auto model =
      paged_model(path_, {.max_tokens = kPromptTokens + kGenerated, .num_sequences = 2});
  read(*model, 0, prompt(), 64);
  model->fork(0, 1);
  // Parent and child share their last block, which is not full; the first to write copies it.
  EXPECT_EQ(continue_alone(*model, 1), expected);
  EXPECT_EQ(continue_alone(*model, 0), expected);
}

TEST_P(BatchEquality, OthersInTheBatchDoNotMatter) {
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

TEST_P(BatchEquality, GreedyTokensAreTheSameForEveryChunkSize) {
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

INSTANTIATE_TEST_SUITE_P(Models, BatchEquality, testing::Values(false, true),
                         [](const auto& test) { return test.param ? "SmolLM2" : "RandomF32"; });

}  // namespace
}  // namespace karez::test
