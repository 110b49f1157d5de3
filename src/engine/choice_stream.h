// One answer while it is generated: logits in, tokens and text out.
//
// Biases, min_tokens, end tokens, stop texts, whole characters and log probabilities are here; the
// sampler does the rest. Text that may become a stop text or a character waits, and its tokens with
// it. A grammar whose text is complete ends the answer, also before min_tokens.
// Thread: one caller at a time. The vocabulary must outlive it.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine_client.h"
#include "engine/vocabulary.h"
#include "sampling/stop_sequences.h"
#include "sampling/utf8.h"
#include "sched/request.h"
#include "sched/step_plan.h"

namespace karez {

class ChoiceStream {
 public:
  // max_tokens >= 1: how many tokens may be generated, the context included.
  ChoiceStream(std::shared_ptr<const Request> request, int choice, int max_tokens,
               const Vocabulary& vocabulary, std::unique_ptr<Sampler> sampler);

  struct Step {
    SampledToken sampled;
    std::optional<GenerationEvent> event;  // none while everything waits
  };
  // logits: f32 [vocab_size]. scratch: memory that calls of one thread share.
  // Requires: not finished.
  Step next(std::span<const float> logits, std::vector<float>& scratch);

  // Ends the answer from outside, with the text that waited. Requires: not finished.
  GenerationEvent end(FinishReason reason, std::optional<Status> error = std::nullopt);

  bool finished() const { return finished_; }
  int generated_tokens() const { return generated_tokens_; }
  int tokens_left() const { return max_tokens_ - generated_tokens_; }

 private:
  bool is_end(TokenId token) const;
  // may_end: without the end tokens otherwise.
  std::span<const float> adjust(std::span<const float> logits, bool may_end,
                                std::vector<float>& scratch) const;
  Expected<TokenId> sample(std::span<const float> logits, std::vector<float>& scratch);
  GeneratedToken describe(TokenId token, std::span<const float> logits) const;
  GenerationEvent take_event(std::string text);

  std::shared_ptr<const Request> request_;
  int choice_;
  int max_tokens_;
  const Vocabulary& vocabulary_;
  std::unique_ptr<Sampler> sampler_;
  Utf8Assembler characters_;
  StopSequences stops_;
  std::vector<TokenId> end_tokens_;  // the answer ends with one of them
  std::vector<GeneratedToken> waiting_;
  int generated_tokens_ = 0;
  bool finished_ = false;
};

}  // namespace karez
