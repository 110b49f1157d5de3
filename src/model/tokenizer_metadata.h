// Checks the vocabulary of a model file before libllama reads it, because libllama aborts on some
// inputs that are only malformed: texts that occur twice, missing byte tokens, a missing begin
// token.
//
// Documented defaults of missing keys are libllama's: tokenizer.ggml.pre "default", scores 0, all
// tokens normal; bos/eos 1/2 ("llama") or 11/11 ("gpt2"). Ids of tokens that only fill or infill
// text may lie outside the vocabulary: libllama ignores those, and there are models with them.
// Thread: no state.
#pragma once

#include "base/status.h"

namespace karez {

class GgufFile;

// Fails: kCorruption naming file, key, value and what is allowed; kUnimplemented for a tokenizer
// other than "llama" (SentencePiece) and "gpt2" (byte-level BPE).
Expected<void> check_tokenizer_metadata(const GgufFile& file);

}  // namespace karez
