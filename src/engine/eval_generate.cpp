#include "engine/eval_generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "engine/eval_store.h"
#include "engine/sequence_compression.h"
#include "engine/window_compressor.h"
#include "kv/compression_schedule.h"

namespace karez {
namespace {

using SteadyClock = std::chrono::steady_clock;

CompressionSchedule schedule_of_mode(const ModelConfig& config, const EvalMode& mode,
                                     int prompt_tokens) {
  return schedule_in(config.kv_cache_spec(mode.kv_type), *mode.compression, prompt_tokens);
}

// One mode's view of the document.
class Lane {
 public:
  Lane(EvalStore store, const EvalMode& mode, const ModelConfig& config, int prompt_tokens)
      : store_(std::move(store)),
        schedule_(schedule_of_mode(config, mode, prompt_tokens)),
        compressor_(*store_.kv, store_.index ? &*store_.index : nullptr, *mode.compression,
                    {config.attention_scale, config.attention_logit_softcap}),
        sequence_(store_),
        compression_(&compressor_, sequence_.id(), schedule_),
        first_sparse_position_(mode.is_sparse ? prompt_tokens : SequenceRows::kNeverSparse) {}

  int max_rows() const { return compression_.max_rows(sequence_.num_tokens()); }

  // One step, of at most max_rows(). Returns: as EvalSequence::append().
  Expected<std::span<const float>> read(ModelRunner& runner, std::span<const TokenId> tokens,
                                        bool wants_logits) {
    const auto begin = SteadyClock::now();
    QueryRing* queries = compression_.ring(sequence_.num_tokens(), static_cast<int>(tokens.size()));
    const auto logits =
        sequence_.append(runner, tokens, first_sparse_position_, wants_logits, queries);
    if (logits && !compression_.advance(sequence_.num_tokens())) {
      return fail(StatusCode::kInternal, "the KV store of the evaluation lost a window");
    }
    seconds_ += std::chrono::duration<double>(SteadyClock::now() - begin).count();
    return logits;
  }

  // At the end. dense_bytes: of dense attention on the same tokens.
  Expected<CompressedRun> result(std::int64_t dense_bytes) {
    const CompressionStats stats = compressor_.stats();
    if (sequence_.num_tokens() >= schedule_.publication_of(static_cast<int>(stats.windows))) {
      return fail(StatusCode::kInternal,
                  "the KV store of the evaluation is too small to compress a window");
    }
    // Of a window under way.
    static_cast<void>(compression_.give_back_slots());
    return CompressedRun{.windows = stats.windows,
                         .kv_bytes = store_.kv->stats().used_bytes,
                         .dense_kv_bytes = dense_bytes,
                         .compress_seconds = stats.seconds,
                         .seconds = seconds_};
  }

 private:
  EvalStore store_;
  CompressionSchedule schedule_;
  WindowCompressor compressor_;
  EvalSequence sequence_;
  SequenceCompression compression_;
  int first_sparse_position_;
  double seconds_ = 0;
};

class GeneratedDocument {
 public:
  GeneratedDocument(const EvalDocument& document, const GenerateSetup& setup)
      : document_(document),
        setup_(setup),
        config_(setup.runner->config()),
        num_read_(static_cast<int>(document.tokens.size()) - 1),
        first_compared_(num_read_ - document.num_decoded) {}

  Expected<std::vector<EvalDocumentResult>> run() {
    if (auto opened = open(); !opened) {
      return fail(opened.error());
    }
    for (int begin = 0; begin < num_read_;) {
      const int count = rows_of_step(begin);
      if (auto done = step(begin, count); !done) {
        return fail(done.error());
      }
      begin += count;
      if (setup_.on_rows) {
        setup_.on_rows(begin - count, begin);
      }
    }
    std::vector<EvalDocumentResult> results;
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      const auto compressed = lanes_[i]->result(store_.kv->stats().used_bytes);
      if (!compressed) {
        return fail(compressed.error());
      }
      results.push_back(document_result(document_, std::move(rows_[i])));
      results.back().prompt_tokens = setup_.prompt_tokens;
      results.back().compressed = *compressed;
    }
    return results;
  }

 private:
  Expected<void> open() {
    auto store = EvalStore::create(config_.kv_cache_spec(setup_.reference_type), std::nullopt,
                                   num_read_, 0, setup_.step_tokens, {});
    if (!store) {
      return fail(store.error());
    }
    store_ = std::move(*store);
    if (!store_.kv->compressible_group()) {
      return fail(StatusCode::kInvalidArgument,
                  "--generate: every layer of this model has a sliding window, there is nothing to "
                  "compress");
    }
    reference_.emplace(store_);
    for (const EvalMode& mode : setup_.modes) {
      // Packing takes slots before it gives any back. Memory is used only where it is written.
      const std::int64_t room = std::int64_t{num_read_} + mode.compression->window_tokens;
      auto lane = EvalStore::create(config_.kv_cache_spec(mode.kv_type),
                                    mode.is_sparse ? std::optional(mode.block_index) : std::nullopt,
                                    room, 0, setup_.step_tokens,
                                    mode.is_sparse ? setup_.key_centres : std::vector<float>());
      if (!lane) {
        return fail(lane.error());
      }
      lanes_.push_back(
          std::make_unique<Lane>(std::move(*lane), mode, config_, setup_.prompt_tokens));
    }
    rows_.resize(lanes_.size());
    return {};
  }

  // Alike for all, so that rounding is too.
  int rows_of_step(int begin) const {
    int count = begin < first_compared_
                    ? std::min(setup_.step_tokens, first_compared_ - begin)
                    : std::min(rows_with_logits(config_.vocab_size), num_read_ - begin);
    for (const std::unique_ptr<Lane>& lane : lanes_) {
      count = std::min(count, lane->max_rows());
    }
    return count;
  }

  Expected<void> step(int begin, int count) {
    const bool is_compared = begin >= first_compared_;
    const auto tokens = tokens_at(begin, count);
    const auto expected = reference_->append(*setup_.reference_runner, tokens,
                                             SequenceRows::kNeverSparse, is_compared);
    if (!expected) {
      return fail(expected.error());
    }
    reference_logits_.assign(expected->begin(), expected->end());
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      const auto logits = lanes_[i]->read(*setup_.runner, tokens, is_compared);
      if (!logits) {
        return fail(logits.error());
      }
      if (is_compared) {
        compare_rows(reference_logits_, *logits, tokens_at(begin + 1, count), rows_[i]);
      }
    }
    return {};
  }

  std::span<const TokenId> tokens_at(int begin, int count) const {
    return std::span(document_.tokens)
        .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
  }

  const EvalDocument& document_;
  const GenerateSetup& setup_;
  const ModelConfig& config_;
  int num_read_;  // the last token is predicted and never read
  int first_compared_;
  EvalStore store_;  // of dense attention
  std::optional<EvalSequence> reference_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<std::vector<RowComparison>> rows_;  // of each lane
  std::vector<float> reference_logits_;           // of the step, [rows][vocab]
};

}  // namespace

Expected<std::vector<EvalDocumentResult>> eval_generated(const EvalDocument& document,
                                                         const GenerateSetup& setup) {
  return GeneratedDocument(document, setup).run();
}

std::int64_t generated_kv_bytes(const ModelConfig& config, const EvalMode& mode, int prompt_tokens,
                                int num_tokens) {
  const KVCacheSpec spec = config.kv_cache_spec(mode.kv_type);
  const std::int64_t held =
      schedule_of_mode(config, mode, prompt_tokens).most_tokens_held(num_tokens);
  return spec.slots_for_sequence(held, kBlockSize) * static_cast<std::int64_t>(spec.slot_bytes());
}

}  // namespace karez
