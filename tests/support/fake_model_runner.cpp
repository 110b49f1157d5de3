#include "support/fake_model_runner.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "kv/kv_cache_manager.h"

namespace karez {

FakeModelRunner::FakeModelRunner(int vocab_size, int num_layers, NextToken next)
    : next_(std::move(next)) {
  config_.architecture = "fake";
  config_.vocab_size = vocab_size;
  config_.num_layers = num_layers;
  config_.num_kv_heads = 1;
  config_.head_dim = 16;
}

KVCacheSpec FakeModelRunner::kv_spec(int num_layers, std::vector<int> layer_windows) {
  KVCacheSpec spec;
  spec.num_layers = num_layers;
  spec.num_kv_heads = 1;
  spec.head_dim = 16;
  spec.layer_windows = std::move(layer_windows);
  return spec;
}

Expected<std::span<const float>> FakeModelRunner::forward(const ForwardBatch& batch,
                                                          KVCacheManager& kv) {
  if (fail_from_ >= 0 && static_cast<int>(batch_rows_.size()) >= fail_from_) {
    return fail(StatusCode::kInternal, "the fake runner was told to fail");
  }
  KAREZ_CHECK(batch.sequences.size() == 1, "one sequence");
  const SequenceRows& rows = batch.sequences.front();
  KAREZ_CHECK(rows.num_rows == static_cast<int>(batch.tokens.size()), "all rows");
  KAREZ_CHECK(rows.tables.size() == kv.layer_groups().size(), "a table for each layer group");
  const auto first = static_cast<std::size_t>(rows.first_position);
  KAREZ_CHECK(first <= history_.size(), "no position is skipped");
  for (const BlockTableView table : rows.tables) {
    KAREZ_CHECK(table.size() * kBlockSize >= first + batch.tokens.size(), "room for every row");
  }
  history_.resize(first);
  logits_.clear();
  std::size_t output = 0;
  for (std::size_t row = 0; row < batch.tokens.size(); ++row) {
    history_.push_back(batch.tokens[row]);
    if (output == batch.output_rows.size() || batch.output_rows[output] != static_cast<int>(row)) {
      continue;
    }
    ++output;
    const std::size_t begin = logits_.size();
    logits_.resize(begin + static_cast<std::size_t>(config_.vocab_size), 0.0F);
    logits_[begin + static_cast<std::size_t>(next_(history_))] = 10.0F;
  }
  output_rows_ += static_cast<int>(output);
  batch_rows_.push_back(rows.num_rows);
  ++times_.steps;
  return std::span<const float>(logits_);
}

StepTimes FakeModelRunner::take_step_times() { return std::exchange(times_, {}); }

}  // namespace karez
