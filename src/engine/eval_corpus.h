// The documents of `karez eval`, made from texts with a model's tokenizer.
//
// If modes compress, the last tokens of a document count as generated, and what is hidden in it
// lies in windows that are compressed before it is asked for.
//
// Thread: functions without state.
#pragma once

#include <vector>

#include "base/status.h"
#include "engine/eval.h"
#include "engine/eval_documents.h"
#include "model/model_config.h"
#include "model/tokenizer.h"

namespace karez {

// Begin token included. Fails: as Tokenizer::tokenize(), naming the text.
Expected<std::vector<TokenId>> tokens_of(const EvalText& text, const Tokenizer& tokenizer);

// Tokens of documents, ascending. Fails: kInvalidArgument naming the flag, as run_eval().
Expected<std::vector<int>> document_lengths(const EvalOptions& options, const ModelConfig& config);

// Fails: kInvalidArgument for a text that is too short, or hidden numbers that do not fit, with the
// figures that are needed; as tokens_of().
Expected<std::vector<EvalDocument>> make_documents(const EvalOptions& options,
                                                   const std::vector<int>& lengths,
                                                   const Tokenizer& tokenizer);

// Whether the modes compress. Requires: all of them do, or none.
bool is_generated(const EvalOptions& options);
// Of a document of so many tokens, those before the generated ones. Requires: is_generated().
int tokens_before_generated(const EvalOptions& options, int length_tokens);

}  // namespace karez
