// Loaded models with their options, few enough to stay small.
//
// Thread: one caller. Owns: the models.
#pragma once

#include <cstdint>
#include <list>
#include <memory>

#include "base/status.h"
#include "engine/eval.h"
#include "engine/eval_report.h"
#include "model/model_runner.h"

namespace karez {

class EvalRunners {
 public:
  // options must outlive it.
  EvalRunners(const EvalOptions& options, std::int64_t weight_bytes);

  // Valid until the second next call. Fails: as load_model().
  Expected<ModelRunner*> runner_of(const EvalMode& mode);

 private:
  struct Entry {
    EvalMode mode;
    std::unique_ptr<ModelRunner> runner;
  };
  const EvalOptions& options_;
  std::int64_t weight_bytes_;
  std::list<Entry> entries_;  // most recently used first
};

}  // namespace karez
