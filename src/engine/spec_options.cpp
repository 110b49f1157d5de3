#include "engine/spec_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "engine/kv_capacity.h"
#include "engine/self_proposer.h"
#include "model/ggml_model_runner.h"
#include "model/tokenizer.h"
#include "spec/draft_model_proposer.h"

namespace karez {
namespace {

constexpr std::array<std::pair<std::string_view, SpecType>, 4> kTypes = {{
    {"none", SpecType::kNone},
    {"ngram", SpecType::kNgram},
    {"draft-model", SpecType::kDraftModel},
    {"self", SpecType::kSelf},
}};

// Token ids must mean the same to both.
Expected<void> check_same_vocabulary(const std::string& path, const Tokenizer& draft,
                                     const Tokenizer& target) {
  if (draft.vocab_size() != target.vocab_size()) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("--spec-draft-model {} has a vocabulary of {} tokens, allowed is the "
                            "model's own, of {} tokens",
                            path, draft.vocab_size(), target.vocab_size()));
  }
  for (TokenId token = 0; token < target.vocab_size(); ++token) {
    if (draft.piece(token, true) != target.piece(token, true)) {
      return fail(StatusCode::kInvalidArgument,
                  fmt::format("--spec-draft-model {} has '{}' as token {}, allowed is the model's "
                              "own vocabulary, where it is '{}'",
                              path, draft.piece(token, true), token, target.piece(token, true)));
    }
  }
  return {};
}

Expected<std::unique_ptr<DraftProposer>> load_draft_model(
    const SpecOptions& options, const SpecTarget& target,
    const std::function<bool(double)>& progress) {
  const std::string& path = options.draft_model_path;
  const auto failed = [](const Status& status) {
    return fail(status.code(), "--spec-draft-model: " + status.message());
  };
  const auto tokenizer = Tokenizer::load(path);
  if (!tokenizer) {
    return failed(tokenizer.error());
  }
  if (auto same = check_same_vocabulary(path, **tokenizer, *target.tokenizer); !same) {
    return fail(std::move(same.error()));
  }
  ModelRunnerOptions runner_options;
  runner_options.num_threads = target.num_threads;
  runner_options.kv_type = target.kv_type;
  runner_options.repack_weights = target.repack_weights;
  auto runner = load_model(path, runner_options, progress);
  if (!runner) {
    return failed(runner.error());
  }
  const ModelConfig& config = (*runner)->config();
  const int context = std::min(target.context_tokens, config.context_length);
  const KVCacheSpec spec = config.kv_cache_spec(target.kv_type);
  const std::int64_t sequences =
      std::max<std::int64_t>(1, sequences_in_cap(target.kv->spec(), target.kv->stats().cap_bytes,
                                                 target.context_tokens, target.max_batch_tokens));
  const std::int64_t bytes = options.draft_kv_bytes.value_or(
      sequences * bytes_for_sequence(spec, context, target.max_batch_tokens));
  auto kv = KVCacheManager::create(spec, bytes);
  if (!kv) {
    return fail(kv.error().code(), "--spec-draft-kv-bytes: " + kv.error().message());
  }
  return std::make_unique<DraftModelProposer>(
      std::move(*runner), std::move(*kv),
      DraftModelOptions{.context_tokens = context, .max_batch_tokens = target.max_batch_tokens});
}

}  // namespace

std::string_view to_string(SpecType type) {
  return std::ranges::find(kTypes, type, &std::pair<std::string_view, SpecType>::second)->first;
}

Expected<SpecType> parse_spec_type(std::string_view name) {
  const auto* found =
      std::ranges::find(kTypes, name, &std::pair<std::string_view, SpecType>::first);
  if (found == kTypes.end()) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("'{}' is none of none, ngram, draft-model, self", name));
  }
  return found->second;
}

SparseOptions with_sparse_drafts(const SparseOptions& sparse, const SpecOptions& options) {
  SparseOptions with_drafts = sparse;
  if (options.type == SpecType::kSelf && !sparse.is_on()) {
    with_drafts.token_budget = options.draft_token_budget;
  }
  return with_drafts;
}

Expected<std::unique_ptr<Speculation>> make_speculation(
    const SpecOptions& options, const SpecTarget& target,
    const std::function<bool(double)>& progress) {
  std::unique_ptr<DraftProposer> proposer;
  switch (options.type) {
    case SpecType::kNone:
      if (options.lengths.num_probes == 0) {
        return std::unique_ptr<Speculation>();
      }
      // Any guess will do: it is never verified.
      return std::make_unique<Speculation>(
          SpeculationOptions{.max_drafts = 0, .num_probes = options.lengths.num_probes},
          std::make_unique<NgramProposer>(NgramOptions{.min_match = 1}));
    case SpecType::kNgram:
      proposer = std::make_unique<NgramProposer>(options.ngram);
      break;
    case SpecType::kDraftModel: {
      auto loaded = load_draft_model(options, target, progress);
      if (!loaded) {
        return fail(std::move(loaded.error()));
      }
      proposer = std::move(*loaded);
      break;
    }
    case SpecType::kSelf:
      proposer = std::make_unique<SelfProposer>(*target.runner, *target.kv, target.key_index,
                                                target.loader);
      break;
  }
  return std::make_unique<Speculation>(options.lengths, std::move(proposer));
}

}  // namespace karez
