#include "cli/sparse_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "cli/flag_checks.h"
#include "kv/kv_types.h"

namespace karez {
namespace {

constexpr std::int64_t kMaxLayers = 4096;

}  // namespace

void add_token_budget_flag(CLI::App& command, SparseFlags& flags) {
  command
      .add_option("--token-budget", flags.token_budget,
                  "Tokens that a generated token attends to in each layer and KV head; 0: all")
      ->capture_default_str()
      ->type_name("N")
      ->group("Sparse decode");
}

void add_selection_flags(CLI::App& command, SparseFlags& flags) {
  const auto number = [&](const char* name, std::int64_t& value, const char* help) {
    command.add_option(name, value, help)
        ->capture_default_str()
        ->type_name("N")
        ->group("Sparse decode");
  };
  number("--recent-window", flags.recent_window, "Of these, the latest");
  number("--sink-tokens", flags.sink_tokens, "Of these, the first of the context");
  number("--dense-layers", flags.dense_layers, "So many first layers attend to everything");
  command
      .add_option("--block-index", flags.block_index,
                  "What blocks are chosen by: r2, r3 (2 or 3 bits a coordinate of rotated keys), "
                  "minmax, mean")
      ->capture_default_str()
      ->type_name("KIND")
      ->group("Sparse decode");
  command
      .add_option("--select-per", flags.select_per,
                  "head: each KV head chooses its own; layer: one choice for all")
      ->capture_default_str()
      ->type_name("WHAT")
      ->group("Sparse decode");
}

Expected<SparseOptions> check_sparse_flags(const SparseFlags& flags) {
  SparseOptions options;
  const auto budget = in_range("--token-budget", flags.token_budget, 0, kMaxTokens);
  const auto recent = in_range("--recent-window", flags.recent_window, 1, kMaxTokens);
  const auto sink = in_range("--sink-tokens", flags.sink_tokens, 0, kMaxTokens);
  const auto dense = in_range("--dense-layers", flags.dense_layers, 0, kMaxLayers);
  for (const auto* value : {&budget, &recent, &sink, &dense}) {
    if (!*value) {
      return fail(value->error());
    }
  }
  options.token_budget = *budget;
  options.recent_window = *recent;
  options.sink_tokens = *sink;
  options.dense_layers = *dense;
  // Windows need not begin at a block's border; two more blocks are for the others.
  const std::int64_t least = flags.recent_window + flags.sink_tokens + 2 * kBlockSize;
  if (options.token_budget != 0 && flags.token_budget < least) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("--token-budget is {}, allowed are 0 (all tokens) and values from {} "
                            "(--recent-window {}, --sink-tokens {}, and 2 blocks)",
                            flags.token_budget, least, flags.recent_window, flags.sink_tokens));
  }
  const auto kind = parse_key_index_kind(flags.block_index);
  if (!kind) {
    return fail(kind.error().code(), "--block-index: " + kind.error().message());
  }
  options.block_index = *kind;
  if (flags.select_per != "head" && flags.select_per != "layer") {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("--select-per is '{}', allowed are head and layer", flags.select_per));
  }
  options.select_per = flags.select_per == "head" ? SelectPer::kHead : SelectPer::kLayer;
  return options;
}

Expected<void> check_selection_is_used(const SparseFlags& flags) {
  if (flags.token_budget != 0) {
    return {};
  }
  const SparseFlags defaults;
  const char* unused = flags.recent_window != defaults.recent_window ? "--recent-window"
                       : flags.sink_tokens != defaults.sink_tokens   ? "--sink-tokens"
                       : flags.dense_layers != defaults.dense_layers ? "--dense-layers"
                       : flags.block_index != defaults.block_index   ? "--block-index"
                       : flags.select_per != defaults.select_per     ? "--select-per"
                                                                     : nullptr;
  if (unused != nullptr) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("{} says what is selected, which needs --token-budget; without one "
                            "every token is attended to",
                            unused));
  }
  return {};
}

Expected<void> check_sparse_for_model(const SparseOptions& options, int num_layers) {
  if (options.is_on() && options.dense_layers >= num_layers) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("--dense-layers is {}, allowed are 0 to {}: this model has {} layers",
                            options.dense_layers, num_layers - 1, num_layers));
  }
  return {};
}

}  // namespace karez
