#include "engine/eval.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "engine/eval_corpus.h"
#include "engine/eval_generate.h"
#include "engine/eval_runners.h"
#include "engine/eval_store.h"
#include "engine/key_centres.h"
#include "model/gguf_file.h"
#include "model/tokenizer.h"

namespace karez {
namespace {

// Rows [begin, end) cost what they read: a share that is alike for all, and their context.
double row_cost(int begin, int end) {
  constexpr double kEvenTokens = 4096;
  return (end - begin) * (kEvenTokens + (begin + end) / 2.0);
}

int prompt_tokens(const EvalDocument& document) {
  // The last token is predicted and never read.
  return static_cast<int>(document.tokens.size()) - 1 - document.num_decoded;
}

// The prompt of the document at hand in a store of its own, up to the last border of a block.
struct Prompt {
  EvalStore store;
  std::optional<EvalSequence> sequence;
};

// Modes that share a prompt: those of one KV type and block index. If they compress: modes that run
// side by side.
struct ModeGroup {
  KvType kv_type;
  std::optional<KeyIndexKind> index;
  std::vector<std::size_t> modes;
};

std::vector<ModeGroup> group_modes(const std::vector<EvalMode>& modes) {
  std::vector<ModeGroup> groups;
  for (std::size_t i = 0; i < modes.size(); ++i) {
    const auto index = modes[i].is_sparse ? std::optional(modes[i].block_index) : std::nullopt;
    auto group = std::find_if(groups.begin(), groups.end(), [&](const ModeGroup& known) {
      return known.kv_type == modes[i].kv_type && known.index == index;
    });
    if (group == groups.end()) {
      group = groups.insert(group, {modes[i].kv_type, index, {}});
    }
    group->modes.push_back(i);
  }
  return groups;
}

class Evaluation {
 public:
  Evaluation(const EvalOptions& options, const EvalProgress& progress)
      : options_(options), progress_(progress) {}

  Expected<EvalReport> run() {
    if (auto ready = prepare(); !ready) {
      return fail(ready.error());
    }
    EvalRunners runners(options_, config_.weight_bytes);
    runners_ = &runners;
    for (const EvalDocument& document : documents_) {
      for (const ModeGroup& group : groups_) {
        auto done =
            is_generated(options_) ? run_generated(document, group) : run_group(document, group);
        if (!done) {
          return fail(done.error());
        }
      }
    }
    return std::move(report_);
  }

 private:
  // Everything that can be wrong with the input, before anything slow.
  Expected<void> prepare() {
    const auto file = GgufFile::open(options_.model_path);
    if (!file) {
      return fail(file.error());
    }
    auto config = read_model_config(*file);
    if (!config) {
      return fail(config.error());
    }
    config_ = std::move(*config);
    const auto lengths = document_lengths(options_, config_);
    if (!lengths) {
      return fail(lengths.error());
    }
    const auto tokenizer = Tokenizer::load(options_.model_path);
    if (!tokenizer) {
      return fail(tokenizer.error());
    }
    auto documents = make_documents(options_, *lengths, **tokenizer);
    if (!documents) {
      return fail(documents.error());
    }
    documents_ = std::move(*documents);
    if (!options_.key_centre.text.empty()) {
      auto tokens = tokens_of(options_.key_centre, **tokenizer);
      if (!tokens) {
        return fail(tokens.error());
      }
      tokens->resize(std::min({tokens->size(), static_cast<std::size_t>(config_.context_length),
                               static_cast<std::size_t>(kMaxKeyCentreTokens)}));
      centre_tokens_ = std::move(*tokens);
    }
    prepare_report();
    groups_ = is_generated(options_) ? groups_side_by_side() : group_modes(options_.modes);
    for (const EvalDocument& document : documents_) {
      for (const ModeGroup& group : groups_) {
        total_cost_ += group_cost(document, group);
      }
    }
    return {};
  }

  void prepare_report() {
    report_.model = std::filesystem::path(options_.model_path).filename().string();
    report_.num_layers = config_.num_layers;
    report_.recent_window = options_.sparse.recent_window;
    report_.sink_tokens = options_.sparse.sink_tokens;
    report_.dense_layers = options_.sparse.dense_layers;
    report_.select_per = options_.sparse.select_per == SelectPer::kHead ? "KV head" : "layer";
    report_.key_centre = options_.key_centre.name;
    report_.prompt_kv = to_string(options_.prompt_kv);
    report_.recall_stride = options_.sparse.recall_stride;
    report_.seed = options_.seed;
    for (const EvalMode& mode : options_.modes) {
      EvalModeResult result;
      result.mode = mode;
      result.reference_type = reference_type(mode.kv_type);
      if (mode.is_sparse) {
        const auto index = key_index_block_bytes(mode.block_index, config_.head_dim);
        result.index_share = static_cast<double>(index) /
                             static_cast<double>(config_.kv_cache_spec(mode.kv_type).slot_bytes());
      }
      report_.modes.push_back(std::move(result));
    }
  }

  KvType reference_type(KvType mode_type) const {
    return options_.reference_type.value_or(mode_type);
  }

  // Whether the prompt of modes of a type is that of their reference too.
  bool shares_prompt(KvType mode_type) const {
    return mode_type == reference_type(mode_type) && options_.prompt_kv == KvWireType::kNative;
  }

  // Of modes with one runner, as many as are small together while the longest document is read.
  std::vector<ModeGroup> groups_side_by_side() const {
    constexpr std::int64_t kKvBytes = std::int64_t{3} << 29;
    int length = 0;
    for (const EvalDocument& document : documents_) {
      length = std::max(length, static_cast<int>(document.tokens.size()));
    }
    std::vector<ModeGroup> groups;
    std::vector<std::int64_t> bytes;  // of each group
    for (std::size_t i = 0; i < options_.modes.size(); ++i) {
      const EvalMode& mode = options_.modes[i];
      const std::int64_t needed =
          generated_kv_bytes(config_, mode, tokens_before_generated(options_, length), length);
      std::size_t group = 0;
      while (group < groups.size() &&
             (!share_a_runner(options_.modes[groups[group].modes.front()], mode) ||
              bytes[group] + needed > kKvBytes)) {
        ++group;
      }
      if (group == groups.size()) {
        groups.push_back(
            {mode.kv_type, mode.is_sparse ? std::optional(mode.block_index) : std::nullopt, {}});
        bytes.push_back(0);
      }
      groups[group].modes.push_back(i);
      bytes[group] += needed;
    }
    return groups;
  }

  double group_cost(const EvalDocument& document, const ModeGroup& group) const {
    if (is_generated(options_)) {
      return static_cast<double>(1 + group.modes.size()) *
             row_cost(0, static_cast<int>(document.tokens.size()) - 1);
    }
    const int prompt = prompt_tokens(document);
    const double prompts = shares_prompt(group.kv_type) ? 1 : 2;
    return prompts * row_cost(0, prompt) + 2.0 * static_cast<double>(group.modes.size()) *
                                               row_cost(prompt, prompt + document.num_decoded);
  }

  void report_progress(std::string_view what, double cost) {
    done_cost_ += cost;
    if (progress_) {
      progress_(what, std::min(1.0, done_cost_ / total_cost_));
    }
  }

  Expected<void> run_group(const EvalDocument& document, const ModeGroup& group) {
    auto runner = runners_->runner_of(options_.modes[group.modes.front()]);
    if (!runner) {
      return fail(runner.error());
    }
    Prompt prompt;
    if (auto read = read_prompt(document, **runner, group.kv_type, group.index, prompt); !read) {
      return read;
    }
    if (options_.prompt_kv == KvWireType::kR4) {
      prompt.sequence->archive_and_restore();
    }
    const KvType reference_type = this->reference_type(group.kv_type);
    Prompt other;
    if (!shares_prompt(group.kv_type)) {
      auto reference = runners_->runner_of({.kv_type = reference_type});
      if (!reference) {
        return fail(reference.error());
      }
      auto read = read_prompt(document, **reference, reference_type, std::nullopt, other);
      if (!read) {
        return read;
      }
    }
    for (const std::size_t mode : group.modes) {
      const Prompt& reference = shares_prompt(group.kv_type) ? prompt : other;
      if (auto done = run_mode(document, mode, prompt, reference); !done) {
        return done;
      }
    }
    return {};
  }

  Expected<void> run_generated(const EvalDocument& document, const ModeGroup& group) {
    const EvalMode& first = options_.modes[group.modes.front()];
    const KvType reference_type = this->reference_type(group.kv_type);
    auto runner = runners_->runner_of(first);
    // The same runner where it can be.
    auto reference = runners_->runner_of({.kv_type = reference_type});
    if (!runner || !reference) {
      return fail(runner ? reference.error() : runner.error());
    }
    std::vector<EvalMode> modes;
    for (const std::size_t mode : group.modes) {
      modes.push_back(options_.modes[mode]);
    }
    const std::string what = fmt::format("{}: {} ways to compress", document.name, modes.size());
    GenerateSetup setup{
        .modes = modes,
        .runner = *runner,
        .reference_runner = *reference,
        .reference_type = reference_type,
        .prompt_tokens =
            tokens_before_generated(options_, static_cast<int>(document.tokens.size())),
        .step_tokens = options_.step_tokens,
        .key_centres = {},
        .on_rows = [&](int begin, int end) {
          report_progress(what, static_cast<double>(1 + modes.size()) * row_cost(begin, end));
        }};
    if (group.index && codes_tokens(*group.index)) {
      auto centres = centres_of(**runner, group.kv_type);
      if (!centres) {
        return fail(centres.error());
      }
      setup.key_centres = std::move(*centres);
    }
    auto results = eval_generated(document, setup);
    if (!results) {
      return fail(results.error());
    }
    for (std::size_t i = 0; i < modes.size(); ++i) {
      report_.modes[group.modes[i]].documents.push_back(std::move((*results)[i]));
    }
    return {};
  }

  Expected<void> read_prompt(const EvalDocument& document, ModelRunner& runner, KvType type,
                             std::optional<KeyIndexKind> index, Prompt& prompt) {
    const int length = prompt_tokens(document) / kBlockSize * kBlockSize;
    std::vector<float> centres;
    if (index && codes_tokens(*index)) {
      auto measured = centres_of(runner, type);
      if (!measured) {
        return fail(measured.error());
      }
      centres = std::move(*measured);
    }
    auto store = EvalStore::create(config_.kv_cache_spec(type), index, length, document.num_decoded,
                                   options_.step_tokens, std::move(centres));
    if (!store) {
      return fail(store.error());
    }
    prompt.store = std::move(*store);
    prompt.sequence.emplace(prompt.store);
    const std::string what = fmt::format("{}: prompt", document.name);
    while (prompt.sequence->num_tokens() < length) {
      const int begin = prompt.sequence->num_tokens();
      const int count = std::min(options_.step_tokens, length - begin);
      auto done = prompt.sequence->append(runner, tokens_at(document, begin, count),
                                          SequenceRows::kNeverSparse, false);
      if (!done) {
        return fail(done.error());
      }
      report_progress(what, row_cost(begin, begin + count));
    }
    return {};
  }

  // Empty: zeros.
  Expected<std::vector<float>> centres_of(ModelRunner& runner, KvType type) {
    const auto known = centres_.find(type);
    if (centre_tokens_.empty() || known != centres_.end()) {
      return centre_tokens_.empty() ? std::vector<float>() : known->second;
    }
    auto centres = measure_key_centres(runner, type, centre_tokens_, options_.step_tokens);
    if (centres) {
      centres_[type] = *centres;
    }
    return centres;
  }

  Expected<void> run_mode(const EvalDocument& document, std::size_t mode_index,
                          const Prompt& prompt, const Prompt& reference_prompt) {
    const EvalMode& mode = options_.modes[mode_index];
    EvalModeResult& result = report_.modes[mode_index];
    auto runner = runners_->runner_of(mode);
    // The same runner where it can be: rows that are not sparse are those of dense attention.
    auto reference_runner = result.reference_type == mode.kv_type
                                ? runner
                                : runners_->runner_of({.kv_type = result.reference_type});
    if (!runner || !reference_runner) {
      return fail(runner ? reference_runner.error() : runner.error());
    }
    EvalSequence sequence = prompt.sequence->fork();
    EvalSequence reference = reference_prompt.sequence->fork();
    const int first = prompt_tokens(document);
    for (auto& [lane, lane_runner] :
         {std::pair(&sequence, *runner), std::pair(&reference, *reference_runner)}) {
      const int begin = lane->num_tokens();
      if (begin < first) {
        auto done = lane->append(*lane_runner, tokens_at(document, begin, first - begin),
                                 SequenceRows::kNeverSparse, false);
        if (!done) {
          return fail(done.error());
        }
      }
    }

    std::vector<RowComparison> rows;
    const std::string what = fmt::format("{}: {}", document.name, to_string(mode));
    const int rows_at_once = rows_with_logits(config_.vocab_size);
    for (int begin = first; begin < first + document.num_decoded; begin += rows_at_once) {
      const int count = std::min(rows_at_once, first + document.num_decoded - begin);
      const auto tokens = tokens_at(document, begin, count);
      auto expected =
          reference.append(**reference_runner, tokens, SequenceRows::kNeverSparse, true);
      if (!expected) {
        return fail(expected.error());
      }
      reference_logits_.assign(expected->begin(), expected->end());
      auto logits = sequence.append(**runner, tokens,
                                    mode.is_sparse ? first : SequenceRows::kNeverSparse, true);
      if (!logits) {
        return fail(logits.error());
      }
      compare_rows(reference_logits_, *logits, tokens_at(document, begin + 1, count), rows);
      report_progress(what, 2 * row_cost(begin, begin + count));
    }
    const auto recall = (*runner)->take_recall();
    result.recall.insert(result.recall.end(), recall.begin(), recall.end());
    result.documents.push_back(document_result(document, std::move(rows)));
    return {};
  }

  static std::span<const TokenId> tokens_at(const EvalDocument& document, int begin, int count) {
    return std::span(document.tokens)
        .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
  }

  const EvalOptions& options_;
  const EvalProgress& progress_;
  std::vector<ModeGroup> groups_;
  ModelConfig config_;
  std::vector<EvalDocument> documents_;
  std::vector<TokenId> centre_tokens_;
  std::map<KvType, std::vector<float>> centres_;
  EvalRunners* runners_ = nullptr;
  EvalReport report_;
  std::vector<float> reference_logits_;  // [rows of the step][vocab]
  double total_cost_ = 0;
  double done_cost_ = 0;
};

}  // namespace

Expected<EvalReport> run_eval(const EvalOptions& options, const EvalProgress& progress) {
  return Evaluation(options, progress).run();
}

}  // namespace karez
