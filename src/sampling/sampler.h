// Picks the next token of one sequence from its logits, and remembers what was picked.
//
// An interface, so that the engine does not depend on the library that does it
// (model/llama_sampler.h).
// Thread: one caller at a time; one sampler per sequence.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"

namespace karez {

class Sampler {
 public:
  virtual ~Sampler() = default;
  // logits: f32 [vocab_size]. The chosen token is accepted (penalties and grammar see it).
  // Fails: kInternal if a logit is NaN or +infinity, or if no token is possible (all logits are
  // -infinity, or the grammar allows none); kInvalidArgument if the grammar has become too
  // ambiguous to go on.
  virtual Expected<std::int32_t> sample(std::span<const float> logits) = 0;
  // Takes a token as part of the history without choosing it (the prompt). The grammar does not
  // see it.
  virtual void accept(std::int32_t token) = 0;
};

}  // namespace karez
