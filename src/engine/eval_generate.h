// Forced decoding of one document as if its last tokens were generated: windows of them are
// compressed as they age, in several ways at once, each against dense attention on the same tokens.
//
//   prompt | generated, read in steps | generated and compared: dense, mode 0, mode 1, ...
//
// Dense attention reads the document once for all modes, in the same steps, so that no logits are
// kept. When a window is compressed depends on positions alone and what a row reads does not depend
// on the rows of its step: it is what decoding one by one gives, up to rounding.
//
// Thread: one caller.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/eval_documents.h"
#include "engine/eval_report.h"
#include "kv/kv_types.h"
#include "model/model_runner.h"

namespace karez {

struct GenerateSetup {
  std::span<const EvalMode> modes;  // that share a runner and compress
  ModelRunner* runner = nullptr;
  ModelRunner* reference_runner = nullptr;  // may be the same
  KvType reference_type = KvType::kBf16;
  int prompt_tokens = 0;                            // not generated; >= 1
  int step_tokens = 512;                            // read at once
  std::vector<float> key_centres;                   // as KeyIndex::create() takes them
  std::function<void(int begin, int end)> on_rows;  // after each step; empty: nobody asks
};

// One result for each mode. Requires: prompt_tokens < the tokens that are read.
// Fails: kInvalidArgument if all layers of the model have sliding windows; as EvalStore::create()
//        and ModelRunner::forward().
Expected<std::vector<EvalDocumentResult>> eval_generated(const EvalDocument& document,
                                                         const GenerateSetup& setup);

// Bytes of KV that a mode holds at most while it reads so many tokens.
std::int64_t generated_kv_bytes(const ModelConfig& config, const EvalMode& mode, int prompt_tokens,
                                int num_tokens);

}  // namespace karez
