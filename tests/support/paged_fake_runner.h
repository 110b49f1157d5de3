// A ModelRunner without a model whose state is only in the KV store: its next token is a hash of
// the whole history, read back through the block tables.
//
// For each row and layer it stores a hash of the token, its position and all values of the layer
// that the row may see, in the row's place of the slot, and the next token is a hash of the row's
// values. A block that is wrong, stale, overwritten or of another prefix therefore changes every
// token after it, as it would in a real model.
// Thread: one caller at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "attention/row_selector.h"
#include "model/model_runner.h"

namespace karez::test {

class PagedFakeRunner final : public ModelRunner {
 public:
  explicit PagedFakeRunner(int vocab_size);

  const ModelConfig& config() const override { return config_; }
  Expected<std::span<const float>> forward(const ForwardBatch& batch, KVCacheManager& kv) override;
  StepTimes take_step_times() override { return {}; }

  // One KV head of 16 coordinates and a layer for each window (0: full attention).
  static KVCacheSpec kv_spec(std::vector<int> layer_windows);

  // Told of each layer before it is read, as a real runner does. Borrowed; null: none.
  SelectionListener* selection_listener = nullptr;
  // Called at the start of each forward(), with its number from 0. False: forward() fails.
  std::function<bool(int call)> before_forward;

 private:
  ModelConfig config_;
  std::vector<std::uint64_t> states_;  // [rows]
  std::vector<float> logits_;
  int num_calls_ = 0;
};

}  // namespace karez::test
