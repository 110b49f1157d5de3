#include "cli/spec_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/flag_checks.h"

namespace karez {
namespace {

constexpr std::int64_t kMaxNgram = 64;
constexpr std::int64_t kMaxBudget = 1 << 24;
constexpr std::int64_t kLeastBudget = 176;  // the recent window, the sink and two blocks

// What --speculative-config says, as if it had been said by flags.
Expected<SpecFlags> flags_of_config(const std::string& text, NgramOptions& ngram) {
  const auto wrong = [](const std::string& what) {
    return fail(StatusCode::kInvalidArgument, "--speculative-config: " + what);
  };
  const nlohmann::json config = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) {
    return wrong(R"(not a JSON object such as {"method":"ngram","num_speculative_tokens":8})");
  }
  SpecFlags flags;
  for (const auto& [key, value] : config.items()) {
    const bool is_text = key == "method" || key == "model";
    if (is_text ? !value.is_string() : !value.is_number_integer()) {
      return wrong(fmt::format("{} is {}, allowed is {}", key, value.dump(),
                               is_text ? "a string" : "an integer"));
    }
    if (key == "method") {
      const auto method = value.get<std::string>();
      if (method != "ngram" && method != "draft_model" && method != "self") {
        return wrong(fmt::format("method is '{}', allowed are ngram, draft_model, self", method));
      }
      flags.type = method == "draft_model" ? "draft-model" : method;
    } else if (key == "model") {
      flags.draft_model = value.get<std::string>();
    } else if (key == "num_speculative_tokens") {
      const auto number = in_range(key, value.get<std::int64_t>(), 1, kMaxDrafts);
      if (!number) {
        return wrong(number.error().message());
      }
      flags.max_drafts = *number;
    } else if (key == "prompt_lookup_min" || key == "prompt_lookup_max") {
      const auto number = in_range(key, value.get<std::int64_t>(), 1, kMaxNgram);
      if (!number) {
        return wrong(number.error().message());
      }
      (key == "prompt_lookup_min" ? ngram.min_match : ngram.max_match) = *number;
    } else {
      return wrong(
          fmt::format("there is no key '{}', there are method, model, "
                      "num_speculative_tokens, prompt_lookup_min, prompt_lookup_max",
                      key));
    }
  }
  if (flags.type.empty()) {
    flags.type = flags.draft_model.empty() ? "ngram" : "draft-model";
  }
  if (ngram.min_match > ngram.max_match) {
    return wrong(fmt::format("prompt_lookup_min is {}, allowed are 1 to {} (prompt_lookup_max)",
                             ngram.min_match, ngram.max_match));
  }
  return flags;
}

// Flags that say something about drafts which nobody makes.
Expected<void> check_is_used(const SpecFlags& flags, SpecType type) {
  const SpecFlags defaults;
  const auto needs = [](const char* flag, const char* what) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("{} needs {}; without it nothing is drafted that way", flag, what));
  };
  if (type != SpecType::kDraftModel && !flags.draft_model.empty()) {
    return needs("--spec-draft-model (-md)", "--spec-type draft-model");
  }
  if (type != SpecType::kDraftModel && !flags.draft_kv_bytes.empty()) {
    return needs("--spec-draft-kv-bytes", "--spec-type draft-model");
  }
  if (type != SpecType::kSelf && flags.draft_token_budget != defaults.draft_token_budget) {
    return needs("--spec-draft-token-budget", "--spec-type self");
  }
  if (type == SpecType::kNone && flags.max_drafts != defaults.max_drafts) {
    return needs("--spec-draft-n-max", "--spec-type");
  }
  if (type == SpecType::kNone && flags.min_drafts != defaults.min_drafts) {
    return needs("--spec-draft-n-min", "--spec-type");
  }
  return {};
}

}  // namespace

void add_spec_flags(CLI::App& command, SpecFlags& flags) {
  const std::string group = "Speculative decoding";
  const auto text = [&](const char* name, std::string& value, const char* type, const char* help) {
    command.add_option(name, value, help)->type_name(type)->group(group);
  };
  const auto number = [&](const char* name, std::int64_t& value, const char* help) {
    command.add_option(name, value, help)->capture_default_str()->type_name("N")->group(group);
  };
  text("--spec-type", flags.type, "TYPE",
       "Who drafts: none; ngram (prompt lookup); draft-model; self (the model itself, reading "
       "little). The answer is the same (default: none)");
  text("--spec-draft-model", flags.draft_model, "FILE",
       "A smaller GGUF model with the same vocabulary (-md)");
  text("--spec-draft-kv-bytes", flags.draft_kv_bytes, "BYTES",
       "Its KV cache (default: as many tokens as the model's own)");
  number("--spec-draft-n-max", flags.max_drafts, "Drafts of a step at most");
  number("--spec-draft-n-min", flags.min_drafts,
         "Drafts of a step at least; 0: as many as pay, or none");
  number("--spec-draft-token-budget", flags.draft_token_budget,
         "self without --token-budget: tokens that a draft attends to");
  text("--speculative-config", flags.config, "JSON", "The same as vLLM has it");
}

Expected<SpecOptions> check_spec_flags(const SpecFlags& typed) {
  SpecOptions options;
  SpecFlags flags = typed;
  if (!typed.config.empty()) {
    if (!typed.type.empty()) {
      return fail(StatusCode::kInvalidArgument,
                  "--spec-type and --speculative-config are given, allowed is one of the two");
    }
    auto said = flags_of_config(typed.config, options.ngram);
    if (!said) {
      return fail(std::move(said.error()));
    }
    flags.type = said->type;
    flags.draft_model = said->draft_model.empty() ? flags.draft_model : said->draft_model;
    flags.max_drafts = said->max_drafts;
  }
  if (flags.type.empty() && !flags.draft_model.empty()) {
    flags.type = "draft-model";
  }
  const auto type = flags.type.empty() ? SpecType::kNone : parse_spec_type(flags.type);
  if (!type) {
    return fail(type.error().code(), "--spec-type: " + type.error().message());
  }
  options.type = *type;
  if (auto used = check_is_used(flags, *type); !used) {
    return fail(std::move(used.error()));
  }
  if (*type == SpecType::kDraftModel && flags.draft_model.empty()) {
    return fail(StatusCode::kInvalidArgument,
                "--spec-type is draft-model, which needs --spec-draft-model (-md)");
  }
  options.draft_model_path = flags.draft_model;
  const auto most = in_range("--spec-draft-n-max", flags.max_drafts, 1, kMaxDrafts);
  if (!most) {
    return fail(most.error());
  }
  const auto least = in_range("--spec-draft-n-min", flags.min_drafts, 0, *most);
  if (!least) {
    return fail(least.error());
  }
  options.lengths = {*most, *least};
  const auto budget =
      in_range("--spec-draft-token-budget", flags.draft_token_budget, kLeastBudget, kMaxBudget);
  if (!budget) {
    return fail(budget.error());
  }
  options.draft_token_budget = *budget;
  auto draft_kv_bytes = optional_size("--spec-draft-kv-bytes", flags.draft_kv_bytes);
  if (!draft_kv_bytes) {
    return fail(std::move(draft_kv_bytes.error()));
  }
  options.draft_kv_bytes = *draft_kv_bytes;
  return options;
}

Expected<TierAndDraftOptions> check_tiers_and_drafts(const TierFlags& tiers, const SpecFlags& spec,
                                                     SparseOptions& sparse) {
  auto home = check_tier_flags(tiers);
  if (!home) {
    return fail(std::move(home.error()));
  }
  auto drafts = check_spec_flags(spec);
  if (!drafts) {
    return fail(std::move(drafts.error()));
  }
  const auto on_miss = check_on_miss(tiers, *home, sparse);
  if (!on_miss) {
    return fail(on_miss.error());
  }
  if (auto usable = check_lookahead(tiers, *drafts, *home, sparse); !usable) {
    return fail(std::move(usable.error()));
  }
  return TierAndDraftOptions{std::move(*home), std::move(*drafts), *on_miss};
}

}  // namespace karez
