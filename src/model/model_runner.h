// Runs ForwardBatches through a model: tokens in, logits out, keys and values into the KV store.
//
// An interface, so that the engine and its tests can use a fake. GgmlModelRunner is the real one.
// Thread: one caller at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/recall.h"
#include "base/status.h"
#include "model/forward_batch.h"
#include "model/model_config.h"

namespace karez {

class KVCacheManager;

// Where the time of forward() went, in seconds, summed since the last reset.
struct StepTimes {
  double total = 0;
  double attention = 0;  // store() to attend(), first thread in to last thread out
  double select = 0;     // of that, picking what sparse rows read, and waiting for it
  double attend = 0;     // of that, reading it
  double rank = 0;       // of that, guessing what later layers will read
  double dense = 0;      // the rest of the graph
  double other = 0;      // outside the graph: building it, inputs, planning
  std::int64_t steps = 0;
  std::int64_t attention_read_bytes = 0;  // keys and values, each counted once per step and layer
  std::int64_t index_read_bytes = 0;      // of the key index, likewise
};

class ModelRunner {
 public:
  virtual ~ModelRunner() = default;

  virtual const ModelConfig& config() const = 0;

  // Requires: kv has room for the batch's tokens (KVCacheManager::extend was called), every token
  // is in [0, vocab_size), the batch is not empty.
  // Returns: f32 [output_rows.size()][vocab_size], valid until the next call.
  // Fails: kInternal if ggml fails; the batch's keys and values are then undefined.
  virtual Expected<std::span<const float>> forward(const ForwardBatch& batch,
                                                   KVCacheManager& kv) = 0;

  virtual StepTimes take_step_times() = 0;  // and reset

  // Archived pages (16 pairs of a layer and KV head) that rows have attended to, since the start.
  virtual std::int64_t archived_pages_read() const { return 0; }

  // PagedAttention::take_recall() of the steps since the last call. Runners that measure none have
  // none.
  virtual std::vector<RecallSample> take_recall() { return {}; }
};

}  // namespace karez
