// One prompt in, one answer out: prefill in chunks, then token by token, over the paged KV store.
//
// Text leaves in whole characters and without any part of a stop text. Not a scheduler: it runs a
// single sequence and keeps nothing between calls.
// Thread: run() blocks its caller, who is also the KV manager's owner thread; callbacks come from
// inside it. `cancelled` may be set from any thread or from a signal handler and is looked at
// between prompt chunks and between tokens.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/token.h"
#include "engine/block_loader.h"
#include "engine/window_compressor.h"
#include "kv/kv_cache_manager.h"
#include "model/model_runner.h"
#include "sampling/sampler.h"
#include "sched/request.h"
#include "spec/speculation.h"

namespace karez {

class Tokenizer;

// What the generator needs to know about a vocabulary.
struct TokenText {
  std::function<std::string(TokenId)> piece;  // the bytes of a token as they are shown
  std::function<bool(TokenId)> is_end;        // the answer ends here

  // Control tokens have no text. The tokenizer must outlive it.
  static TokenText of(const Tokenizer& tokenizer);
};

struct GeneratorOptions {
  int context_tokens = 0;  // prompt and answer together
  int max_tokens = -1;     // of the answer; -1: until its own end or until the context is full
  int chunk_tokens = 512;  // of the prompt in one forward pass
  std::vector<std::string> stop;  // the answer ends before any of these texts
  bool dense_rows = false;        // the answer's rows attend to everything, with a key index too
  bool ignore_eos = false;        // the answer goes on behind its end token
  CompressionSchedule compression = {};  // of the KV; needs a compressor
  int decode_read_tokens = 0;            // as SchedulerOptions has it, of the answer's rows
};

struct GeneratorCallbacks {
  std::function<void(int done_tokens, int prompt_tokens)> on_prefill;  // may be empty
  // A part of the answer, never empty. False: nobody reads any more, stop.
  std::function<bool(std::string_view)> on_text;
};

struct GenerationResult {
  FinishReason finish_reason = FinishReason::kStop;
  int prompt_tokens = 0;     // that were processed
  int generated_tokens = 0;  // an end token included
  double prefill_seconds = 0;
  double decode_seconds = 0;
  int decode_steps = 0;             // forward passes behind the prompt's
  int decode_tokens = 0;            // that they gave; the first token comes from the prefill
  std::vector<float> step_seconds;  // [decode_steps], from one forward pass to the next
  std::int64_t kv_used_bytes = 0;   // at the end
  // With a tier below the fast one: what has moved, the prompt's part and the answer's.
  struct TierTraffic {
    std::int64_t home_used_bytes = 0;  // at the end
    std::int64_t blocks_read = 0;      // by layers, each once a layer and step
    std::int64_t blocks_loaded = 0;    // of these, from home
    std::int64_t bytes_read = 0;
    std::int64_t bytes_written = 0;
    double stall_seconds = 0;
  };
  std::optional<TierTraffic> prompt_traffic;
  std::optional<TierTraffic> answer_traffic;
  std::int64_t kv_cap_bytes = 0;
  std::optional<SpeculationStats> speculation;
  std::optional<CompressionStats> compression;
};

// Bytes of KV cap that a sequence of num_tokens takes when its prompt is run in such chunks.
std::int64_t kv_bytes_for_sequence(const KVCacheSpec& spec, std::int64_t num_tokens,
                                   int chunk_tokens);

// Whether this prompt can run; Generator::run() asks the same. Callers ask before they load a
// model.
// Fails: kInvalidArgument for an empty prompt, one with a token outside the vocabulary, one that
//        leaves no room for an answer in the context, or options out of range;
//        kResourceExhausted if the KV cap cannot hold the prompt and what max_tokens asks for
//        (with -1: and one token), naming the figure needed.
Expected<void> check_prompt(std::span<const TokenId> prompt, const GeneratorOptions& options,
                            int vocab_size, const KVCacheManager& kv);

class Generator {
 public:
  // All must outlive the generator. key_index, loader, speculation: as of Engine::create(); the
  // answer's rows are sparse with an index.
  Generator(ModelRunner& runner, KVCacheManager& kv, TokenText text,
            const KeyIndex* key_index = nullptr, BlockLoader* loader = nullptr,
            Speculation* speculation = nullptr, WindowCompressor* compressor = nullptr);

  // Ends with kLength when max_tokens, the context or the KV cap is reached. The runner's step
  // times afterwards are those of the answer's steps, without the prompt's.
  // Fails: as check_prompt(), ModelRunner::forward() and Sampler::sample().
  Expected<GenerationResult> run(std::span<const TokenId> prompt, const GeneratorOptions& options,
                                 Sampler& sampler, const GeneratorCallbacks& callbacks,
                                 const std::atomic<bool>& cancelled);

 private:
  ModelRunner& runner_;
  KVCacheManager& kv_;
  TokenText text_;
  const KeyIndex* key_index_;
  BlockLoader* loader_;
  Speculation* speculation_;
  WindowCompressor* compressor_;
};

}  // namespace karez
