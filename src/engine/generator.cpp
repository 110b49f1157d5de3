#include "engine/generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <limits>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "engine/sequence_compression.h"
#include "engine/sequence_tables.h"
#include "kv/block_pin.h"
#include "kv/residency.h"
#include "kv/window_blocks.h"
#include "model/tokenizer.h"
#include "sampling/stop_sequences.h"
#include "sampling/utf8.h"

namespace karez {
namespace {

using SteadyClock = std::chrono::steady_clock;

double seconds_since(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

// A sequence of the KV store that is closed at the end of its scope.
class OpenSequence {
 public:
  explicit OpenSequence(KVCacheManager& kv) : kv_(kv), id_(kv.open()) {}
  ~OpenSequence() { kv_.close(id_); }
  OpenSequence(const OpenSequence&) = delete;
  OpenSequence& operator=(const OpenSequence&) = delete;
  SequenceId id() const { return id_; }

 private:
  KVCacheManager& kv_;
  SequenceId id_;
};

constexpr const char* kLostMessage =
    "keys and values could not be read back from the tier below the fast one";

// What the steps of one answer have in common.
struct StepContext {
  ModelRunner& runner;
  KVCacheManager& kv;
  const KeyIndex* key_index;
  BlockLoader* loader;
  SequenceId sequence;
  int first_sparse_position;
  SequenceCompression& compression;
};

// Runs tokens that extend() has made room for. Logits of the last num_outputs rows before the hint
// rows.
Expected<std::span<const float>> forward(const StepContext& step, std::span<const TokenId> tokens,
                                         int num_outputs, int num_hint_rows = 0) {
  KVCacheManager& kv = step.kv;
  const BlockPin pin = kv.pin(step.sequence);
  ForwardBatch batch;
  batch.key_index = step.key_index;
  batch.tokens.assign(tokens.begin(), tokens.end());
  SequenceRows rows;
  set_tables(rows, kv, step.sequence);
  rows.num_rows = static_cast<int>(tokens.size());
  rows.first_position = kv.num_tokens(step.sequence) - rows.num_rows;
  rows.first_sparse_position = step.first_sparse_position;
  rows.num_hint_rows = num_hint_rows;
  rows.queries = step.compression.ring(rows.first_position, rows.num_rows);
  const int end = rows.num_rows - num_hint_rows;
  for (int row = end - num_outputs; row < end; ++row) {
    batch.output_rows.push_back(row);
  }
  batch.sequences.push_back(std::move(rows));
  if (step.loader == nullptr) {
    return step.runner.forward(batch, kv);
  }
  step.loader->begin_step(kv, batch.sequences);
  auto logits = step.runner.forward(batch, kv);
  const auto reads = step.loader->end_step();
  if (logits && reads.front().is_lost) {
    return fail(StatusCode::kUnavailable, kLostMessage);
  }
  return logits;
}

void write_home(const StepContext& step) {
  if (step.kv.residency() != nullptr) {
    step.kv.write_home(step.sequence);
    step.kv.residency()->advance();
  }
}

// Of so many rows, those that a lone sequence can compute in a step, however small the fast tier
// above a home tier. read_tokens: of a row; 0: all before it.
int most_that_stream(const KVCacheManager& kv, SequenceId sequence, int num_rows, int read_tokens) {
  if (kv.residency() == nullptr) {
    return num_rows;
  }
  const std::int64_t read = read_tokens == 0 ? std::numeric_limits<std::int64_t>::max()
                                             : std::int64_t{read_tokens} * num_rows;
  const std::int64_t most = kv.most_step_tokens(sequence, read, kv.slots_for_sequences());
  return static_cast<int>(std::min<std::int64_t>(num_rows, most));
}

// What has moved since `before`; none without a home tier.
std::optional<GenerationResult::TierTraffic> traffic_since(const KVCacheManager& kv,
                                                           const ResidencyStats& before) {
  if (kv.residency() == nullptr) {
    return std::nullopt;
  }
  const ResidencyStats now = kv.residency()->stats();
  return GenerationResult::TierTraffic{.home_used_bytes = now.home_bytes_used,
                                       .blocks_read = now.blocks_needed - before.blocks_needed,
                                       .blocks_loaded = now.demand_misses - before.demand_misses,
                                       .bytes_read = now.bytes_read - before.bytes_read,
                                       .bytes_written = now.bytes_written - before.bytes_written,
                                       .stall_seconds = now.stall_seconds - before.stall_seconds};
}

// Turns tokens into text for the reader. False: the reader is gone.
class TextStream {
 public:
  TextStream(const TokenText& text, const GeneratorOptions& options,
             const GeneratorCallbacks& callbacks)
      : text_(text), callbacks_(callbacks), stops_(options.stop) {}

  [[nodiscard]] bool push(TokenId token) {
    return show(stops_.push(characters_.push(text_.piece(token))));
  }
  [[nodiscard]] bool finish() {
    return show(stops_.push(characters_.finish())) && show(stops_.finish());
  }
  bool stopped() const { return stops_.stopped(); }

 private:
  bool show(std::string_view text) const {
    return text.empty() || !callbacks_.on_text || callbacks_.on_text(text);
  }

  const TokenText& text_;
  const GeneratorCallbacks& callbacks_;
  Utf8Assembler characters_;
  StopSequences stops_;
};

// The drafts of the step at hand, and which of them turned out right.
class StepDrafts {
 public:
  explicit StepDrafts(Speculation* speculation) : speculation_(speculation) {}
  ~StepDrafts() {
    if (speculation_ != nullptr) {
      tell();
      speculation_->forget(kSequence);
    }
  }
  StepDrafts(const StepDrafts&) = delete;
  StepDrafts& operator=(const StepDrafts&) = delete;

  std::size_t num_accepted() const { return num_accepted_; }
  // The token that came. True: it was the next draft, whose logits are there.
  bool accept(TokenId token) {
    came_.push_back(token);
    if (num_accepted_ < num_verified() && guesses_[num_accepted_] == token) {
      ++num_accepted_;
      return true;
    }
    return false;
  }
  // For the next step.
  std::span<const TokenId> next(std::span<const TokenId> tokens, int max_drafts, SequenceId kv) {
    num_accepted_ = 0;
    if (speculation_ == nullptr) {
      return {};
    }
    tell();
    const DraftQuery query{kSequence, tokens, max_drafts, kv};
    DraftRows rows = speculation_->draft(std::span(&query, 1)).front();
    guesses_ = std::move(rows.tokens);
    num_probes_ = rows.num_probes;
    return guesses_;
  }
  int num_probes() const { return num_probes_; }
  void give_up() {
    guesses_.clear();
    num_probes_ = 0;
  }
  void note_step(int rows, double seconds) {
    if (speculation_ != nullptr) {
      speculation_->note_step(rows, seconds);
    }
  }

 private:
  static constexpr DraftSequence kSequence{};

  std::size_t num_verified() const {
    return guesses_.size() - static_cast<std::size_t>(num_probes_);
  }
  void tell() {
    speculation_->note(kSequence, static_cast<int>(num_verified()), came_);
    give_up();
    came_.clear();
  }

  Speculation* speculation_;  // may be null
  std::vector<TokenId> guesses_;
  int num_probes_ = 0;  // the last of them
  std::vector<TokenId> came_;
  std::size_t num_accepted_ = 0;
};

}  // namespace

TokenText TokenText::of(const Tokenizer& tokenizer) {
  return {[&](TokenId token) { return tokenizer.piece(token, /*render_special=*/false); },
          [&](TokenId token) { return tokenizer.is_end_of_generation(token); }};
}

std::int64_t kv_bytes_for_sequence(const KVCacheSpec& spec, std::int64_t num_tokens,
                                   int chunk_tokens) {
  return spec.slots_for_sequence(num_tokens, chunk_tokens) *
         static_cast<std::int64_t>(spec.slot_bytes());
}

// A lone sequence with a home tier: all of it has to fit there, and into the fast tier what one
// layer reads at a time, what the smallest step writes, and what the step before it wrote.
Expected<void> check_room_with_home(const KVCacheManager& kv, std::int64_t num_tokens) {
  const KVCacheSpec& spec = kv.spec();
  const auto slot_bytes = static_cast<std::int64_t>(spec.slot_bytes());
  const std::int64_t home_blocks = spec.slots_for_sequence(num_tokens, kBlockSize);
  const ResidencyStats home = kv.residency()->stats();
  if (home_blocks > home.home_blocks_total) {
    // A block may take more at home than a slot.
    const std::int64_t home_bytes =
        home_blocks * (home.home_bytes_total / std::max<std::int64_t>(1, home.home_blocks_total));
    return fail(
        StatusCode::kResourceExhausted,
        fmt::format("the tier below the fast one (--kv-host-bytes, --kv-disk-bytes) has {} "
                    "bytes; {} tokens need {} bytes ({})",
                    home.home_bytes_total, num_tokens, home_bytes, format_bytes(home_bytes)));
  }
  const std::int64_t fast_bytes = slot_bytes * (spec.num_kv_heads * num_blocks(num_tokens) +
                                                2 * spec.slots_for_sequence(kBlockSize, 1) + 1);
  if (fast_bytes > kv.stats().cap_bytes) {
    return fail(
        StatusCode::kResourceExhausted,
        fmt::format("the KV cap (--kv-fast-bytes) is {} bytes; one layer of {} tokens, and "
                    "room to write, need {} bytes ({})",
                    kv.stats().cap_bytes, num_tokens, fast_bytes, format_bytes(fast_bytes)));
  }
  return {};
}

Expected<void> check_prompt(std::span<const TokenId> prompt, const GeneratorOptions& options,
                            int vocab_size, const KVCacheManager& kv) {
  if (prompt.empty()) {
    return fail(StatusCode::kInvalidArgument, "the prompt is empty");
  }
  const auto context = static_cast<std::size_t>(std::max(options.context_tokens, 0));
  if (prompt.size() >= context) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("the prompt has {} tokens and the context is {}, allowed are prompts "
                            "of {} tokens at most",
                            prompt.size(), context, context > 0 ? context - 1 : 0));
  }
  for (const TokenId token : prompt) {
    if (token < 0 || token >= vocab_size) {
      return fail(StatusCode::kInvalidArgument,
                  fmt::format("the prompt has token {}, the model's vocabulary is 0 to {}", token,
                              vocab_size - 1));
    }
  }
  if (options.max_tokens == 0 || options.max_tokens < -1) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("the number of tokens to predict is {}, allowed are -1 (until the end) "
                            "and 1 or more",
                            options.max_tokens));
  }
  if (options.chunk_tokens < 1) {
    return fail(
        StatusCode::kInvalidArgument,
        fmt::format("the prompt chunk is {} tokens, allowed are 1 or more", options.chunk_tokens));
  }
  // The last token of the answer is never fed back, so it takes no room.
  const std::size_t wanted =
      options.max_tokens < 0 ? 1 : static_cast<std::size_t>(options.max_tokens);
  const std::size_t answer = std::min(wanted, context - prompt.size());
  const std::int64_t total =
      options.compression.most_tokens_held(static_cast<std::int64_t>(prompt.size() + answer - 1));
  const KVCacheStats stats = kv.stats();
  const std::int64_t needed = kv_bytes_for_sequence(kv.spec(), total, options.chunk_tokens);
  const std::int64_t free = stats.cap_bytes - stats.used_bytes;
  if (needed > free && kv.residency() != nullptr) {
    return check_room_with_home(kv, total);
  }
  if (needed > free) {
    return fail(
        StatusCode::kResourceExhausted,
        fmt::format(
            "the KV cap (--kv-fast-bytes) has {} bytes free ({}); this prompt of {} tokens plus {} "
            "generated needs {} bytes ({})",
            free, format_bytes(free), prompt.size(), answer, needed, format_bytes(needed)));
  }
  return {};
}

Generator::Generator(ModelRunner& runner, KVCacheManager& kv, TokenText text,
                     const KeyIndex* key_index, BlockLoader* loader, Speculation* speculation,
                     WindowCompressor* compressor)
    : runner_(runner),
      kv_(kv),
      text_(std::move(text)),
      key_index_(key_index),
      loader_(loader),
      speculation_(speculation),
      compressor_(compressor) {}

Expected<GenerationResult> Generator::run(std::span<const TokenId> prompt,
                                          const GeneratorOptions& options, Sampler& sampler,
                                          const GeneratorCallbacks& callbacks,
                                          const std::atomic<bool>& cancelled) {
  if (auto checked = check_prompt(prompt, options, runner_.config().vocab_size, kv_); !checked) {
    return fail(std::move(checked.error()));
  }
  const OpenSequence sequence(kv_);
  SequenceCompression compression(compressor_, sequence.id(), options.compression);
  GenerationResult result;
  ResidencyStats before_answer;
  const auto finish = [&](FinishReason reason) {
    const KVCacheStats stats = kv_.stats();
    result.kv_used_bytes = stats.used_bytes;
    result.kv_cap_bytes = stats.cap_bytes;
    result.finish_reason = reason;
    if (result.prompt_traffic) {
      result.answer_traffic = traffic_since(kv_, before_answer);
    }
    if (speculation_ != nullptr) {
      result.speculation = speculation_->stats();
    }
    if (options.compression.is_on()) {
      result.compression = compressor_->stats();
      result.compression->pairs_brought_back = runner_.archived_pages_read() * kBlockSize;
    }
    return result;
  };

  const auto prefill_start = SteadyClock::now();
  std::span<const float> logits;
  const int prompt_tokens = static_cast<int>(prompt.size());
  const bool has_sparse_rows = key_index_ != nullptr && !options.dense_rows;
  const StepContext step{
      runner_,    kv_,           key_index_,
      loader_,    sequence.id(), has_sparse_rows ? prompt_tokens : SequenceRows::kNeverSparse,
      compression};
  const auto compress = [&](int num_tokens) -> Expected<void> {
    if (!compression.advance(num_tokens)) {
      return fail(StatusCode::kUnavailable, kLostMessage);
    }
    return {};
  };
  const auto extend = [&](int num_tokens) {
    return kv_.extend(sequence.id(), num_tokens) ||
           (compression.give_back_slots() && kv_.extend(sequence.id(), num_tokens));
  };
  const auto most_rows = [&](int num_rows, int read_tokens) {
    const int most = most_that_stream(kv_, sequence.id(), num_rows, read_tokens);
    return most > 0 || !compression.give_back_slots()
               ? most
               : most_that_stream(kv_, sequence.id(), num_rows, read_tokens);
  };
  while (result.prompt_tokens < prompt_tokens) {
    if (cancelled.load(std::memory_order_relaxed)) {
      return finish(FinishReason::kCancelled);
    }
    int count = std::min({options.chunk_tokens, prompt_tokens - result.prompt_tokens,
                          compression.max_rows(result.prompt_tokens)});
    count = std::max(1, most_rows(count, /*read_tokens=*/0));
    bool has_room = extend(count);
    // With a home tier room comes back when what was computed before has gone home.
    while (!has_room && kv_.residency() != nullptr && count > 1) {
      count /= 2;
      has_room = extend(count);
    }
    if (!has_room) {
      return fail(StatusCode::kResourceExhausted,
                  fmt::format("the KV cap is full after {} of the prompt's {} tokens",
                              result.prompt_tokens, prompt_tokens));
    }
    const auto chunk = prompt.subspan(static_cast<std::size_t>(result.prompt_tokens),
                                      static_cast<std::size_t>(count));
    auto output = forward(step, chunk, result.prompt_tokens + count == prompt_tokens ? 1 : 0);
    if (!output) {
      return fail(std::move(output.error()));
    }
    write_home(step);
    logits = *output;
    for (const TokenId token : chunk) {
      sampler.accept(token);
    }
    result.prompt_tokens += count;
    if (auto done = compress(result.prompt_tokens); !done) {
      return fail(std::move(done.error()));
    }
    result.prefill_seconds = seconds_since(prefill_start);
    if (callbacks.on_prefill) {
      callbacks.on_prefill(result.prompt_tokens, prompt_tokens);
    }
  }
  result.prompt_traffic = traffic_since(kv_, {});
  if (kv_.residency() != nullptr) {
    before_answer = kv_.residency()->stats();
  }
  runner_.take_step_times();  // from here on they are those of decoding

  const int room = options.context_tokens - prompt_tokens;
  const int limit = options.max_tokens < 0 ? room : std::min(options.max_tokens, room);
  TextStream stream(text_, options, callbacks);
  const auto end_text = [&](FinishReason reason) {
    return finish(stream.finish() ? reason : FinishReason::kCancelled);
  };
  const auto decode_start = SteadyClock::now();
  const auto vocab_size = static_cast<std::size_t>(runner_.config().vocab_size);
  std::vector<TokenId> tokens(prompt.begin(), prompt.end());
  std::vector<TokenId> rows;  // of the next step: the last token, and drafts
  StepDrafts drafts(speculation_);
  while (true) {
    if (cancelled.load(std::memory_order_relaxed)) {
      return end_text(FinishReason::kCancelled);
    }
    auto token = sampler.sample(logits.subspan(drafts.num_accepted() * vocab_size, vocab_size));
    if (!token) {
      return fail(std::move(token.error()));
    }
    ++result.generated_tokens;
    result.decode_tokens += result.decode_steps > 0 ? 1 : 0;
    tokens.push_back(*token);
    const bool is_accepted = drafts.accept(*token);
    if (text_.is_end(*token) && !options.ignore_eos) {
      return end_text(FinishReason::kStop);
    }
    if (!stream.push(*token)) {
      return finish(FinishReason::kCancelled);
    }
    if (stream.stopped()) {
      return finish(FinishReason::kStop);
    }
    if (result.generated_tokens == limit) {
      return end_text(FinishReason::kLength);
    }
    if (is_accepted) {
      continue;
    }
    const bool is_shorter = kv_.truncate(sequence.id(), static_cast<int>(tokens.size()) - 1);
    KAREZ_CHECK(is_shorter, "a step releases nothing that its own rows read");
    if (result.decode_steps > 0) {
      write_home(step);
    }
    const int num_tokens = static_cast<int>(tokens.size()) - 1;
    if (auto done = compress(num_tokens); !done) {
      return fail(std::move(done.error()));
    }
    const int max_drafts =
        std::min(limit - result.generated_tokens, compression.max_rows(num_tokens)) - 1;
    const auto guesses = drafts.next(tokens, max_drafts, sequence.id());
    int num_rows = 1 + static_cast<int>(guesses.size());
    rows.clear();
    rows.push_back(*token);
    std::ranges::copy(guesses, std::back_inserter(rows));
    if (num_rows > 1 &&
        (most_that_stream(kv_, sequence.id(), num_rows, options.decode_read_tokens) < num_rows ||
         !kv_.extend(sequence.id(), num_rows))) {
      drafts.give_up();
      num_rows = 1;
    }
    if (num_rows == 1 && (most_rows(1, options.decode_read_tokens) == 0 || !extend(1))) {
      return end_text(FinishReason::kLength);
    }
    const auto step_start = SteadyClock::now();
    auto output = forward(step, std::span(rows).first(static_cast<std::size_t>(num_rows)),
                          num_rows - drafts.num_probes(), drafts.num_probes());
    if (!output) {
      return fail(std::move(output.error()));
    }
    logits = *output;
    drafts.note_step(num_rows, seconds_since(step_start));
    ++result.decode_steps;
    const double seconds = seconds_since(decode_start);
    result.step_seconds.push_back(static_cast<float>(seconds - result.decode_seconds));
    result.decode_seconds = seconds;
  }
}

}  // namespace karez
