// The flags of sparse decode, shared by the commands that run a model.
#pragma once

#include <cstdint>
#include <string>

#include "attention/sparse_rows.h"
#include "base/status.h"

namespace CLI {
class App;
}

namespace karez {

// As typed.
struct SparseFlags {
  std::int64_t token_budget = 0;
  std::int64_t recent_window = 128;
  std::int64_t sink_tokens = 16;
  std::int64_t dense_layers = 0;
  std::string block_index = "r2";
  std::string select_per = "head";
};

// Without --token-budget, which some commands take as a list.
void add_selection_flags(CLI::App& command, SparseFlags& flags);
void add_token_budget_flag(CLI::App& command, SparseFlags& flags);

// Fails: kInvalidArgument naming the flag, its value and what is allowed.
Expected<SparseOptions> check_sparse_flags(const SparseFlags& flags);

// Fails: kInvalidArgument naming the first flag that says how tokens are selected while no budget
// makes anything select.
Expected<void> check_selection_is_used(const SparseFlags& flags);
// Fails: kInvalidArgument if --dense-layers leaves none of the model's layers to select for.
Expected<void> check_sparse_for_model(const SparseOptions& options, int num_layers);

}  // namespace karez
