#include <fmt/format.h>

#include <optional>
#include <stdexcept>

#include "kv/kv_cache_manager.h"
#include "model/ggml_model_runner.h"
#include "model/llama_reference.h"
#include "support/oracle.h"

namespace karez::test {
namespace {

template <typename T>
T value_or_throw(Expected<T> expected) {
  if (!expected) {
    throw std::runtime_error(expected.error().to_string());
  }
  return std::move(*expected);
}

class PagedModel final : public TeacherForced {
 public:
  PagedModel(const std::string& path, const PagedModelOptions& options)
      : runner_(value_or_throw(load_model(path, {.num_threads = options.num_threads,
                                                 .kv_type = options.kv_type,
                                                 .repack_weights = options.repack_weights,
                                                 .cpu_level = options.cpu_level}))) {
    const KVCacheSpec spec = runner_->config().kv_cache_spec(options.kv_type);
    // Twice the blocks of a window: chunks are not multiples of the step.
    const std::int64_t slots =
        2 * spec.slots_for_sequence(options.max_tokens, kMaxForwardRows) * options.num_sequences;
    kv_ = value_or_throw(
        KVCacheManager::create(spec, slots * static_cast<std::int64_t>(spec.slot_bytes())));
    sequences_.resize(static_cast<std::size_t>(options.num_sequences));
  }

  std::span<const float> forward(std::span<const Chunk> chunks) override {
    ForwardBatch batch;
    for (const Chunk& chunk : chunks) {
      SequenceRows rows;
      const SequenceId sequence = id(chunk.sequence);
      rows.first_position = kv_->num_tokens(sequence);
      rows.num_rows = static_cast<int>(chunk.tokens.size());
      rows.first_row = static_cast<int>(batch.tokens.size());
      if (!kv_->extend(sequence, rows.num_rows)) {
        throw std::runtime_error("the test's KV store is too small");
      }
      for (std::size_t group = 0; group < kv_->layer_groups().size(); ++group) {
        rows.tables.push_back(kv_->table(sequence, static_cast<int>(group)));
      }
      for (const TokenId token : chunk.tokens) {
        if (chunk.want_logits) {
          batch.output_rows.push_back(static_cast<int>(batch.tokens.size()));
        }
        batch.tokens.push_back(token);
      }
      batch.sequences.push_back(std::move(rows));
    }
    return value_or_throw(runner_->forward(batch, *kv_));
  }

  void fork(int from, int to) override {
    const SequenceId parent = id(from);
    const std::optional<SequenceId> child = kv_->fork(parent, kv_->num_tokens(parent));
    if (!child) {
      throw std::runtime_error("a sequence cannot be forked at its end");
    }
    sequences_[static_cast<std::size_t>(to)] = *child;
  }

  int vocab_size() const override { return runner_->config().vocab_size; }

 private:
  SequenceId id(int sequence) {
    SequenceId& result = sequences_[static_cast<std::size_t>(sequence)];
    if (result.is_none()) {
      result = kv_->open();
    }
    return result;
  }

  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<KVCacheManager> kv_;
  std::vector<SequenceId> sequences_;  // none: not begun
};

class LlamaModel final : public TeacherForced {
 public:
  LlamaModel(const std::string& path, const LlamaModelOptions& options)
      : reference_(
            value_or_throw(LlamaReference::load(path, {.num_threads = options.num_threads,
                                                       .context_tokens = options.max_tokens,
                                                       .num_sequences = options.num_sequences,
                                                       .batch_tokens = kMaxForwardRows,
                                                       .max_output_rows = kMaxLogitRows,
                                                       .cache_type_k = options.cache_type_k,
                                                       .cache_type_v = options.cache_type_v,
                                                       .flash_attention = false,
                                                       .repack_weights = options.repack_weights}))),
        lengths_(static_cast<std::size_t>(options.num_sequences), 0) {}

  std::span<const float> forward(std::span<const Chunk> chunks) override {
    std::vector<LlamaReference::Row> rows;
    for (const Chunk& chunk : chunks) {
      int& length = lengths_[static_cast<std::size_t>(chunk.sequence)];
      for (const TokenId token : chunk.tokens) {
        rows.push_back({token, length, chunk.sequence, chunk.want_logits});
        ++length;
      }
    }
    return value_or_throw(reference_->decode(rows));
  }

  void fork(int from, int to) override {
    reference_->copy_sequence(from, to);
    lengths_[static_cast<std::size_t>(to)] = lengths_[static_cast<std::size_t>(from)];
  }

  int vocab_size() const override { return reference_->vocab_size(); }

 private:
  std::unique_ptr<LlamaReference> reference_;
  std::vector<int> lengths_;
};

}  // namespace

std::unique_ptr<TeacherForced> paged_model(const std::string& path,
                                           const PagedModelOptions& options) {
  return std::make_unique<PagedModel>(path, options);
}

std::unique_ptr<TeacherForced> llama_model(const std::string& path,
                                           const LlamaModelOptions& options) {
  return std::make_unique<LlamaModel>(path, options);
}

}  // namespace karez::test
