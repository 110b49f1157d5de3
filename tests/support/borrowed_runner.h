// A runner that somebody else owns: engines and drafters own theirs, and loading a model takes
// longer than a test of it.
//
// Thread: as the runner.
// Owns: nothing.
#pragma once

#include <cstdint>

#include "model/model_runner.h"

namespace karez::test {

class BorrowedRunner final : public ModelRunner {
 public:
  explicit BorrowedRunner(ModelRunner& runner) : runner_(runner) {}
  const ModelConfig& config() const override { return runner_.config(); }
  Expected<std::span<const float>> forward(const ForwardBatch& batch, KVCacheManager& kv) override {
    return runner_.forward(batch, kv);
  }
  StepTimes take_step_times() override { return runner_.take_step_times(); }
  std::int64_t archived_pages_read() const override { return runner_.archived_pages_read(); }

 private:
  ModelRunner& runner_;
};

}  // namespace karez::test
