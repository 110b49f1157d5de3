#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "engine/bench_engine.h"

namespace karez {
namespace {

class LlamaBenchEngine final : public BenchEngine {
 public:
  LlamaBenchEngine(LlamaReference& reference, int step_tokens)
      : reference_(reference), step_tokens_(step_tokens) {}

  Expected<double> prefill(std::span<const TokenId> tokens) override {
    const auto start = std::chrono::steady_clock::now();
    while (!tokens.empty()) {
      const std::size_t step = std::min(tokens.size(), static_cast<std::size_t>(step_tokens_));
      rows_.clear();
      for (std::size_t i = 0; i < step; ++i) {
        rows_.push_back({tokens[i], depth_ + static_cast<int>(i), 0, false});
      }
      tokens = tokens.subspan(step);
      rows_.back().want_logits = tokens.empty();
      if (auto logits = reference_.decode(rows_); !logits) {
        return fail(logits.error());
      }
      depth_ += static_cast<int>(step);
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  Expected<void> make_copies(int num_copies) override {
    num_copies_ = num_copies;
    for (int copy = 1; copy < num_copies; ++copy) {
      reference_.copy_sequence(0, copy);
    }
    // libllama moves the bytes at the next decode: here, not in measured time.
    const std::vector<TokenId> warm_up(static_cast<std::size_t>(num_copies), 1);
    if (auto warmed = decode(warm_up); !warmed) {
      return fail(warmed.error());
    }
    return {};
  }

  Expected<BenchDecode> decode(std::span<const TokenId> tokens) override {
    const auto copies = static_cast<std::size_t>(num_copies_);
    KAREZ_CHECK(copies > 0 && tokens.size() % copies == 0, "tokens: [steps][copies]");
    const auto start = std::chrono::steady_clock::now();
    BenchDecode result;
    for (; !tokens.empty(); tokens = tokens.subspan(copies)) {
      rows_.clear();
      for (std::size_t copy = 0; copy < copies; ++copy) {
        rows_.push_back({tokens[copy], depth_ + result.steps, static_cast<int>(copy), true});
      }
      if (auto logits = reference_.decode(rows_); !logits) {
        return fail(logits.error());
      }
      ++result.steps;
    }
    result.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    for (int copy = 0; copy < num_copies_; ++copy) {
      reference_.remove_tokens(copy, depth_);
    }
    return result;
  }

  void drop_copies() override {
    for (int copy = 1; copy < num_copies_; ++copy) {
      reference_.remove_tokens(copy, 0);
    }
    num_copies_ = 0;
  }

  void clear() override {
    reference_.clear();
    num_copies_ = 0;
    depth_ = 0;
  }

 private:
  LlamaReference& reference_;
  int step_tokens_;
  int depth_ = 0;
  int num_copies_ = 0;
  std::vector<LlamaReference::Row> rows_;
};

}  // namespace

std::unique_ptr<BenchEngine> make_llama_bench_engine(LlamaReference& reference, int step_tokens) {
  return std::make_unique<LlamaBenchEngine>(reference, step_tokens);
}

}  // namespace karez
