// A vocabulary without a model: token 0 ends an answer, the others are letters or given pieces, and
// samplers take the most likely token.
//
// Thread: const calls from any threads at once.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/check.h"
#include "engine/vocabulary.h"

namespace karez::test {

class GreedySampler final : public Sampler {
 public:
  Expected<std::int32_t> sample(std::span<const float> logits) override {
    const auto best = std::ranges::max_element(logits);
    if (!(*best > -1e30F)) {
      return fail(StatusCode::kInternal, "no token is possible");
    }
    return static_cast<std::int32_t>(best - logits.begin());
  }
  void accept(std::int32_t /*token*/) override {}
};

class FakeVocabulary final : public Vocabulary {
 public:
  explicit FakeVocabulary(int size, std::map<TokenId, std::string> pieces = {})
      : size_(size), pieces_(std::move(pieces)) {}

  int size() const override { return size_; }
  std::string piece(TokenId token) const override {
    const auto found = pieces_.find(token);
    if (found != pieces_.end()) {
      return found->second;
    }
    return token == 0 ? std::string() : std::string(1, static_cast<char>('a' + token % 26));
  }
  std::span<const TokenId> end_tokens() const override { return kEnds; }
  Expected<std::unique_ptr<Sampler>> make_sampler(const SamplingParams& params) const override {
    if (params.grammar == "bad") {
      return fail(StatusCode::kInvalidArgument, "the grammar is bad");
    }
    return std::make_unique<GreedySampler>();
  }

 private:
  static constexpr std::array<TokenId, 1> kEnds = {0};
  int size_;
  std::map<TokenId, std::string> pieces_;
};

}  // namespace karez::test
