#include "engine/eval_runners.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "model/ggml_model_runner.h"

namespace karez {

EvalRunners::EvalRunners(const EvalOptions& options, std::int64_t weight_bytes)
    : options_(options), weight_bytes_(std::max<std::int64_t>(weight_bytes, 1)) {}

Expected<ModelRunner*> EvalRunners::runner_of(const EvalMode& mode) {
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (share_a_runner(entry->mode, mode)) {
      entries_.splice(entries_.begin(), entries_, entry);
      return entries_.front().runner.get();
    }
  }
  // A mode and its reference at once, and more of them if they are small.
  constexpr std::int64_t kKeptBytes = std::int64_t{2} << 30;
  const auto most = static_cast<std::size_t>(std::max<std::int64_t>(2, kKeptBytes / weight_bytes_));
  while (entries_.size() >= most) {
    entries_.pop_back();
  }
  ModelRunnerOptions runner_options;
  runner_options.num_threads = options_.num_threads;
  runner_options.kv_type = mode.kv_type;
  if (mode.is_sparse) {
    runner_options.sparse = options_.sparse;
    runner_options.sparse.token_budget = mode.token_budget;
    runner_options.sparse.block_index = mode.block_index;
  }
  auto runner = load_model(options_.model_path, runner_options);
  if (!runner) {
    return fail(runner.error());
  }
  entries_.push_front({mode, std::move(*runner)});
  return entries_.front().runner.get();
}

}  // namespace karez
