// The figures of `karez eval`, as a table for people, as JSON, and as a plot.
//
// Thread: values and pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "attention/key_index.h"
#include "attention/recall.h"
#include "compress/compression_options.h"
#include "engine/eval_documents.h"
#include "engine/eval_statistics.h"
#include "kv/kv_types.h"

namespace karez {

struct EvalMode {
  KvType kv_type = KvType::kBf16;
  bool is_sparse = false;
  int token_budget = 0;                          // if sparse
  KeyIndexKind block_index = KeyIndexKind::kR2;  // if sparse
  std::optional<CompressionOptions> compression = std::nullopt;
};

// Whether they differ in compression alone, which a model knows nothing about.
bool share_a_runner(const EvalMode& a, const EvalMode& b);

// "dense q8_0", "sparse r2 512 bf16", "dense bf16 50 % causal none off"
std::string to_string(const EvalMode& mode);

// One planted fact, asked for at the end.
struct NeedleResult {
  double depth = 0;                   // of the planted sentence, in [0, 1]
  std::vector<RowComparison> tokens;  // of the answer

  // Every token of the answer is the best one: greedy decoding would give it.
  bool is_recalled() const;
  bool reference_recalls() const;
};

// What compression did to one document.
struct CompressedRun {
  std::int64_t windows = 0;
  std::int64_t kv_bytes = 0;  // in use at the end
  std::int64_t dense_kv_bytes = 0;
  double compress_seconds = 0;
  double seconds = 0;  // of the whole run, that included

  double kv_share() const;  // of dense attention's bytes
};

struct EvalDocumentResult {
  std::string name;
  DocumentKind kind = DocumentKind::kText;
  int length_tokens = 0;
  std::vector<RowComparison> rows;  // one for each decoded token
  std::vector<NeedleResult> needles;
  int prompt_tokens = 0;  // that do not count as generated, if compressed
  std::optional<CompressedRun> compressed = std::nullopt;  // if the mode compresses
};
// rows: one for each decoded token.
EvalDocumentResult document_result(const EvalDocument& document, std::vector<RowComparison> rows);

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
  // Sums over the same documents; zeros if the mode does not compress.
  CompressedRun compressed() const;
};

struct EvalReport {
  std::string model;
  int num_layers = 0;
  int recent_window = 0;
  int sink_tokens = 0;
  int dense_layers = 0;
  std::string select_per;
  std::string prompt_kv;   // how the prompt's KV has come to the modes: "native", "r4"
  std::string key_centre;  // the text that the index's centre is the mean key of; empty: zero
  int recall_stride = 0;
  std::uint64_t seed = 0;
  std::vector<EvalModeResult> modes;
};

std::string to_table(const EvalReport& report);
nlohmann::json to_json(const EvalReport& report);
// Total loss against budget, a line for each block index and KV type; of modes that compress,
// against the KV bytes that are left, a line for each way to choose what is kept.
std::string to_plot(const EvalReport& report);

}  // namespace karez
