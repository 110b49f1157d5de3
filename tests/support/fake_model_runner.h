// A ModelRunner without a model: its next token is a function of all tokens that it was fed.
//
// It keeps each sequence's tokens by position and checks the contract of forward() on the way: rows
// in order, room in the KV store, tables that cover the rows.
// Thread: one caller at a time.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/model_runner.h"

namespace karez {

class FakeModelRunner final : public ModelRunner {
 public:
  // history: every token of the sequence up to the row. Returns the token with the highest logit.
  using NextToken = std::function<TokenId(std::span<const TokenId> history)>;

  FakeModelRunner(int vocab_size, int num_layers, NextToken next);

  const ModelConfig& config() const override { return config_; }
  Expected<std::span<const float>> forward(const ForwardBatch& batch, KVCacheManager& kv) override;
  StepTimes take_step_times() override;

  // One KV head of 16 coordinates; windows as given (empty: full attention).
  static KVCacheSpec kv_spec(int num_layers, std::vector<int> layer_windows = {});

  // The number of rows of each forward() so far, and how many of them gave logits.
  const std::vector<int>& batch_rows() const { return batch_rows_; }
  int output_rows() const { return output_rows_; }
  // forward() fails from this call on (0: the first).
  void fail_from(int call) { fail_from_ = call; }

 private:
  ModelConfig config_;
  NextToken next_;
  std::vector<TokenId> history_;  // of the only sequence
  std::vector<int> batch_rows_;
  std::vector<float> logits_;
  int output_rows_ = 0;
  int fail_from_ = -1;
  StepTimes times_;
};

}  // namespace karez
