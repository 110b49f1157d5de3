// `karez eval` without its command line: the same text through dense attention and through other KV
// modes, teacher-forced, row by row held against each other.
//
// A document's prompt is read densely; its last tokens are decoded, each with the document's own
// tokens before it, once densely and once in the mode. They run as a few steps of many rows: a
// row's result does not depend on the rows beside it. Logits are compared as they come, so memory
// does not grow with the vocabulary times the text.
//
// Modes that compress (EvalMode::compression) are decoded from the begin of what counts as
// generated and held against dense attention at the end of it (eval_generate.h).
//
// Thread: one caller.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attention/sparse_rows.h"
#include "base/status.h"
#include "engine/eval_report.h"
#include "engine/role_options.h"
#include "kv/kv_types.h"

namespace karez {

struct EvalText {
  std::string name;
  std::string text;  // UTF-8
};

struct EvalOptions {
  std::string model_path;
  std::vector<EvalText> texts;
  std::vector<int> lengths;  // tokens of a document; empty: 7904 or the model's context
  int decode_tokens = 256;   // of them, the last ones, which are compared
  // At least one. All compress or none does; those that do have the same window and recent tokens.
  std::vector<EvalMode> modes;
  // If modes compress: so many of the last tokens count as generated; 0: all but the first 64.
  int generated_tokens = 0;
  std::optional<KvType> reference_type;  // of dense attention; none: that of the mode
  // How the prompt's KV has come to the modes; the reference has it as it was computed. The key
  // index is of the keys as they were computed. No effect on modes that compress.
  KvWireType prompt_kv = KvWireType::kNative;
  SparseOptions sparse;  // of all sparse modes; their budget and index come from the mode

  // Whose mean keys are the centre of the key index; empty: the centre is zero.
  EvalText key_centre;

  int num_needles = 0;    // a document with so many for each length
  bool pass_key = false;  // one document for each length and depth
  EvalText filler;        // where they are hidden
  std::uint64_t seed = 1;

  int num_threads = 1;
  int step_tokens = 512;  // tokens of a prompt computed at once
};

// Depths of pass keys.
inline constexpr double kPassKeyDepths[] = {0.0, 0.25, 0.5, 0.75, 1.0};

// what is being done, and the part of all work that is done, in [0, 1]
using EvalProgress = std::function<void(std::string_view what, double done)>;

// Fails: kInvalidArgument for a length beyond the model's context or a text that is too short, with
//        the figures that are needed; else as plant_needles(), load_model(), eval_generated() and
//        KVCacheManager::create().
Expected<EvalReport> run_eval(const EvalOptions& options, const EvalProgress& progress);

}  // namespace karez
