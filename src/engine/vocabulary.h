// What the engine needs to know of a vocabulary, so that its tests need no model file.
//
// Thread: const calls from any threads at once.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "base/token.h"
#include "sampling/sampler.h"
#include "sampling/sampling_params.h"

namespace karez {

class Tokenizer;

class Vocabulary {
 public:
  virtual ~Vocabulary() = default;
  virtual int size() const = 0;
  // The bytes of a token as they are shown; may be part of a UTF-8 character. Empty for control
  // tokens.
  virtual std::string piece(TokenId token) const = 0;
  // The tokens that end an answer (end of text, end of turn), ascending. Valid for its lifetime.
  virtual std::span<const TokenId> end_tokens() const = 0;
  // Fails: kInvalidArgument for parameters out of range or a grammar that cannot be read.
  virtual Expected<std::unique_ptr<Sampler>> make_sampler(const SamplingParams& params) const = 0;
};

// Over a model's tokenizer, which must outlive it and its samplers.
// context_tokens: how far repeat_last_n = -1 looks back.
std::unique_ptr<Vocabulary> model_vocabulary(const Tokenizer& tokenizer, int context_tokens);

}  // namespace karez
