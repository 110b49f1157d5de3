// The figures of `karez eval`, as a table for people, as JSON, and as a plot.
//
// Thread: values and pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "attention/key_index.h"
#include "attention/recall.h"
#include "engine/eval_documents.h"
#include "engine/eval_statistics.h"
#include "kv/kv_types.h"

namespace karez {

struct EvalMode {
  KvType kv_type = KvType::kBf16;
  bool is_sparse = false;
  int token_budget = 0;                          // if sparse
  KeyIndexKind block_index = KeyIndexKind::kR2;  // if sparse

  bool operator==(const EvalMode&) const = default;
};

// "dense q8_0", "sparse r2 512 bf16"
std::string to_string(const EvalMode& mode);

// One planted fact, asked for at the end.
struct NeedleResult {
  double depth = 0;                   // of the planted sentence, in [0, 1]
  std::vector<RowComparison> tokens;  // of the answer

  // Every token of the answer is the best one: greedy decoding would give it.
  bool is_recalled() const;
  bool reference_recalls() const;
};

struct EvalDocumentResult {
  std::string name;
  DocumentKind kind = DocumentKind::kText;
  int length_tokens = 0;
  std::vector<RowComparison> rows;  // one for each decoded token
  std::vector<NeedleResult> needles;
};

struct NeedleFigures {
  EvalFigures answers;  // over the tokens of all answers
  int asked = 0;
  int recalled = 0;
  int reference_recalled = 0;
};
NeedleFigures summarise_needles(const std::vector<NeedleResult>& needles);

struct EvalModeResult {
  EvalMode mode;
  KvType reference_type = KvType::kBf16;  // of the dense attention that it is held against
  double index_share = 0;                 // bytes of the block index over those of the KV
  std::vector<EvalDocumentResult> documents;
  std::vector<RecallSample> recall;  // empty unless measured

  // Over all documents but those with a pass key.
  EvalFigures total() const;
  std::vector<NeedleResult> needles(DocumentKind kind) const;
};

struct EvalReport {
  std::string model;
  int num_layers = 0;
  int recent_window = 0;
  int sink_tokens = 0;
  int dense_layers = 0;
  std::string select_per;
  std::string key_centre;  // the text that the index's centre is the mean key of; empty: zero
  int recall_stride = 0;
  std::uint64_t seed = 0;
  std::vector<EvalModeResult> modes;
};

std::string to_table(const EvalReport& report);
nlohmann::json to_json(const EvalReport& report);
// Total loss against budget, a line for each block index and KV type.
std::string to_plot(const EvalReport& report);

}  // namespace karez
