#include "engine/eval.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "engine/eval_store.h"
#include "engine/key_centres.h"
#include "model/ggml_model_runner.h"
#include "model/gguf_file.h"
#include "model/tokenizer.h"

namespace karez {
namespace {

constexpr int kDefaultLength = 7904;

std::string file_name(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

// Rows [begin, end) cost what they read: a share that is alike for all, and their context.
double row_cost(int begin, int end) {
  constexpr double kEvenTokens = 4096;
  return (end - begin) * (kEvenTokens + (begin + end) / 2.0);
}

int prompt_tokens(const EvalDocument& document) {
  // The last token is predicted and never read.
  return static_cast<int>(document.tokens.size()) - 1 - document.num_decoded;
}

Expected<std::vector<TokenId>> tokens_of(const EvalText& text, const Tokenizer& tokenizer) {
  auto tokens = tokenizer.tokenize(text.text, /*add_special=*/true, /*parse_special=*/false);
  if (!tokens) {
    return fail(tokens.error().code(), fmt::format("{}: {}", text.name, tokens.error().message()));
  }
  return tokens;
}

Expected<void> check_lengths(const std::vector<int>& lengths, int decode_tokens,
                             const ModelConfig& config) {
  for (const int length : lengths) {
    if (length > config.context_length) {
      return fail(StatusCode::kInvalidArgument,
                  fmt::format("--length is {}; the model has a context of {} tokens", length,
                              config.context_length));
    }
    if (length < decode_tokens + 2) {
      return fail(StatusCode::kInvalidArgument,
                  fmt::format("--length is {}; with --decode-tokens {} it has to be {} at least",
                              length, decode_tokens, decode_tokens + 2));
    }
  }
  return {};
}

Expected<std::vector<EvalDocument>> make_documents(const EvalOptions& options,
                                                   const std::vector<int>& lengths,
                                                   const Tokenizer& tokenizer) {
  std::vector<EvalDocument> documents;
  const auto name_of = [&](const std::string& name, int length) {
    return lengths.size() > 1 ? fmt::format("{} {}", name, length) : name;
  };
  for (const EvalText& text : options.texts) {
    const auto tokens = tokens_of(text, tokenizer);
    if (!tokens) {
      return fail(tokens.error());
    }
    for (const int length : lengths) {
      if (tokens->size() < static_cast<std::size_t>(length)) {
        return fail(StatusCode::kInvalidArgument,
                    fmt::format("{} has {} tokens; {} are needed (--length)", text.name,
                                tokens->size(), length));
      }
      documents.push_back({.name = name_of(text.name, length),
                           .kind = DocumentKind::kText,
                           .tokens = {tokens->begin(), tokens->begin() + length},
                           .num_decoded = options.decode_tokens,
                           .needles = {}});
    }
  }
  if (options.num_needles == 0 && !options.pass_key) {
    return documents;
  }
  const auto filler = tokens_of(options.filler, tokenizer);
  if (!filler) {
    return fail(filler.error());
  }
  const DocumentVocabulary vocabulary = {
      [&](std::string_view text) { return tokenizer.tokenize(text, false, false); },
      [&](TokenId token) { return tokenizer.piece(token, false); }};
  const auto plant = [&](const std::string& name, int length, int min_decoded,
                         const NeedleOptions& needles) -> Expected<void> {
    auto document = plant_needles(name, *filler, length, min_decoded, needles, vocabulary);
    if (!document) {
      return fail(document.error().code(),
                  fmt::format("{} in {}", document.error().message(), options.filler.name));
    }
    documents.push_back(std::move(*document));
    return {};
  };
  for (const int length : lengths) {
    if (options.num_needles > 0) {
      auto planted = plant(name_of("needles", length), length, options.decode_tokens,
                           {.count = options.num_needles, .seed = options.seed});
      if (!planted) {
        return fail(planted.error());
      }
    }
    for (const double depth : kPassKeyDepths) {
      if (!options.pass_key) {
        break;
      }
      auto planted = plant(fmt::format("pass key {} {:.0f} %", length, depth * 100), length, 1,
                           {.kind = DocumentKind::kPassKey,
                            .count = 1,
                            .first_depth = depth,
                            .last_depth = depth,
                            .seed = options.seed});
      if (!planted) {
        return fail(planted.error());
      }
    }
  }
  return documents;
}

// Loaded models with their options, few enough to stay small.
class RunnerCache {
 public:
  RunnerCache(const EvalOptions& options, std::int64_t weight_bytes)
      : options_(options), weight_bytes_(std::max<std::int64_t>(weight_bytes, 1)) {}

  // Valid until the second next call. Fails: as load_model().
  Expected<ModelRunner*> runner_of(const EvalMode& mode) {
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (entry->mode == mode) {
        entries_.splice(entries_.begin(), entries_, entry);
        return entries_.front().runner.get();
      }
    }
    // A mode and its reference at once, and more of them if they are small.
    constexpr std::int64_t kKeptBytes = std::int64_t{2} << 30;
    const auto most =
        static_cast<std::size_t>(std::max<std::int64_t>(2, kKeptBytes / weight_bytes_));
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

 private:
  struct Entry {
    EvalMode mode;
    std::unique_ptr<ModelRunner> runner;
  };
  const EvalOptions& options_;
  std::int64_t weight_bytes_;
  std::list<Entry> entries_;  // most recently used first
};

// The prompt of the document at hand in a store of its own, up to the last border of a block.
struct Prompt {
  EvalStore store;
  std::optional<EvalSequence> sequence;
};

// Modes that share a prompt: those of one KV type and block index.
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
      : options_(options), progress_(progress), groups_(group_modes(options.modes)) {}

  Expected<EvalReport> run() {
    if (auto ready = prepare(); !ready) {
      return fail(ready.error());
    }
    RunnerCache runners(options_, config_.weight_bytes);
    runners_ = &runners;
    for (const EvalDocument& document : documents_) {
      for (const ModeGroup& group : groups_) {
        if (auto done = run_group(document, group); !done) {
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
    std::vector<int> lengths = options_.lengths;
    if (lengths.empty()) {
      lengths = {std::min(kDefaultLength, config_.context_length)};
    }
    if (auto fit = check_lengths(lengths, options_.decode_tokens, config_); !fit) {
      return fit;
    }
    const auto tokenizer = Tokenizer::load(options_.model_path);
    if (!tokenizer) {
      return fail(tokenizer.error());
    }
    auto documents = make_documents(options_, lengths, **tokenizer);
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
    for (const EvalDocument& document : documents_) {
      for (const ModeGroup& group : groups_) {
        total_cost_ += group_cost(document, group);
      }
    }
    return {};
  }

  void prepare_report() {
    report_.model = file_name(options_.model_path);
    report_.num_layers = config_.num_layers;
    report_.recent_window = options_.sparse.recent_window;
    report_.sink_tokens = options_.sparse.sink_tokens;
    report_.dense_layers = options_.sparse.dense_layers;
    report_.select_per = options_.sparse.select_per == SelectPer::kHead ? "KV head" : "layer";
    report_.key_centre = options_.key_centre.name;
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

  double group_cost(const EvalDocument& document, const ModeGroup& group) const {
    const int prompt = prompt_tokens(document);
    const double prompts = group.kv_type == reference_type(group.kv_type) ? 1 : 2;
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
    const KvType reference_type = this->reference_type(group.kv_type);
    Prompt other;
    if (reference_type != group.kv_type) {
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
      const Prompt& reference = reference_type == group.kv_type ? prompt : other;
      if (auto done = run_mode(document, mode, prompt, reference); !done) {
        return done;
      }
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

    EvalDocumentResult& out = result.documents.emplace_back();
    out.name = document.name;
    out.kind = document.kind;
    out.length_tokens = static_cast<int>(document.tokens.size());
    const std::string what = fmt::format("{}: {}", document.name, to_string(mode));
    const int rows_at_once = rows_of_step();
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
      compare(tokens_at(document, begin + 1, count), *logits, out.rows);
      report_progress(what, 2 * row_cost(begin, begin + count));
    }
    const auto recall = (*runner)->take_recall();
    result.recall.insert(result.recall.end(), recall.begin(), recall.end());
    for (const Needle& needle : document.needles) {
      NeedleResult& found = out.needles.emplace_back();
      found.depth = needle.depth;
      for (const int position : needle.answer_positions) {
        found.tokens.push_back(out.rows[static_cast<std::size_t>(position - 1 - first)]);
      }
    }
    return {};
  }

  void compare(std::span<const TokenId> targets, std::span<const float> logits,
               std::vector<RowComparison>& rows) const {
    const auto vocab = static_cast<std::size_t>(config_.vocab_size);
    for (std::size_t row = 0; row < targets.size(); ++row) {
      rows.push_back(compare_row(std::span(reference_logits_).subspan(row * vocab, vocab),
                                 logits.subspan(row * vocab, vocab), targets[row]));
    }
  }

  // So many that their logits stay small.
  int rows_of_step() const {
    constexpr std::int64_t kLogitBytes = 16 << 20;
    constexpr std::int64_t kMostRows = 64;
    return static_cast<int>(std::clamp<std::int64_t>(
        kLogitBytes / (std::int64_t{config_.vocab_size} * 4), 1, kMostRows));
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
  RunnerCache* runners_ = nullptr;
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
