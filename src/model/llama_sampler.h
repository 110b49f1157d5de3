// The Sampler that libllama's sampler chain does: same samplers, order and defaults as llama.cpp.
//
// Order: penalties, top-k, typical, top-p, min-p, temperature, then a draw; a temperature of 0 or
// less takes the most likely token. With a grammar a token is drawn without it first and drawn
// again under it only if the grammar forbids the first, as llama.cpp does: a grammar looks at the
// whole vocabulary, which costs more than the rest together.
// Thread: one caller at a time.
#pragma once

#include <memory>

#include "base/status.h"
#include "sampling/sampler.h"
#include "sampling/sampling_params.h"

namespace karez {

class Tokenizer;

// context_tokens: how far repeat_last_n = -1 looks back. The tokenizer must outlive the sampler.
// Fails: as SamplingParams::validate(); kInvalidArgument for a grammar that libllama cannot read
// (libllama prints the reason to stderr).
Expected<std::unique_ptr<Sampler>> make_llama_sampler(const Tokenizer& tokenizer,
                                                      const SamplingParams& params,
                                                      int context_tokens);

}  // namespace karez
