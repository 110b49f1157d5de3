#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/bytes.h"
#include "base/check.h"
#include "engine/bench_engine.h"
#include "engine/sequence_copy.h"
#include "kv/kv_cache_manager.h"

namespace karez {
namespace {

Status no_room(const KVCacheManager& kv, std::string_view what) {
  const KVCacheStats stats = kv.stats();
  return Status(StatusCode::kResourceExhausted,
                fmt::format("no room for {}: {} of the cap of {} are in use", what,
                            format_bytes(stats.used_bytes), format_bytes(stats.cap_bytes)));
}

class KarezBenchEngine final : public BenchEngine {
 public:
  KarezBenchEngine(ModelRunner& runner, KVCacheManager& kv, KeyIndex* key_index, int step_tokens)
      : runner_(runner),
        kv_(kv),
        key_index_(key_index),
        step_tokens_(step_tokens),
        base_(kv.open()) {}
  KarezBenchEngine(const KarezBenchEngine&) = delete;
  KarezBenchEngine& operator=(const KarezBenchEngine&) = delete;
  ~KarezBenchEngine() override {
    drop_copies();
    kv_.close(base_);
  }

  Expected<double> prefill(std::span<const TokenId> tokens) override {
    const auto start = std::chrono::steady_clock::now();
    while (!tokens.empty()) {
      const std::size_t step = std::min(tokens.size(), static_cast<std::size_t>(step_tokens_));
      start_batch();
      batch_.tokens.assign(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(step));
      tokens = tokens.subspan(step);
      if (!append_rows(base_, static_cast<int>(step))) {
        return fail(no_room(kv_, "the prompt"));
      }
      if (tokens.empty()) {
        batch_.output_rows = {static_cast<int>(step) - 1};
      }
      if (auto logits = runner_.forward(batch_, kv_); !logits) {
        return fail(logits.error());
      }
    }
    return seconds_since(start);
  }

  Expected<void> make_copies(int num_copies) override {
    drop_copies();
    for (int i = 0; i < num_copies; ++i) {
      if (auto copied = add_copy(); !copied) {
        return copied;
      }
    }
    return {};
  }

  Expected<BenchDecode> decode(std::span<const TokenId> tokens) override {
    KAREZ_CHECK(!copies_.empty() && tokens.size() % copies_.size() == 0, "tokens: [steps][copies]");
    if (auto ready = restore_copies(); !ready) {
      return fail(ready.error());
    }
    static_cast<void>(runner_.take_step_times());
    const auto start = std::chrono::steady_clock::now();
    BenchDecode result;
    for (; !tokens.empty(); tokens = tokens.subspan(copies_.size())) {
      start_batch();
      batch_.tokens.assign(tokens.begin(),
                           tokens.begin() + static_cast<std::ptrdiff_t>(copies_.size()));
      for (const SequenceId copy : copies_) {
        batch_.output_rows.push_back(static_cast<int>(batch_.sequences.size()));
        if (!append_rows(copy, 1)) {
          return fail(no_room(kv_, "a decode step"));
        }
      }
      if (auto logits = runner_.forward(batch_, kv_); !logits) {
        return fail(logits.error());
      }
      ++result.steps;
    }
    result.seconds = seconds_since(start);
    result.times = runner_.take_step_times();
    return result;
  }

  void drop_copies() override {
    for (const SequenceId copy : copies_) {
      kv_.close(copy);
    }
    copies_.clear();
  }

  void clear() override {
    drop_copies();
    kv_.close(base_);
    base_ = kv_.open();
  }

 private:
  static double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  void start_batch() {
    batch_ = {};
    batch_.key_index = key_index_;
  }

  // Makes room for the sequence's next rows and enters them into the batch.
  bool append_rows(SequenceId sequence, int num_rows) {
    SequenceRows rows;
    rows.first_position = kv_.num_tokens(sequence);
    rows.num_rows = num_rows;
    rows.first_row = batch_.sequences.empty()
                         ? 0
                         : batch_.sequences.back().first_row + batch_.sequences.back().num_rows;
    if (!kv_.extend(sequence, num_rows)) {
      return false;
    }
    if (key_index_ != nullptr && sequence != base_) {
      rows.first_sparse_position = kv_.num_tokens(base_);
    }
    for (std::size_t group = 0; group < kv_.layer_groups().size(); ++group) {
      rows.tables.push_back(kv_.table(sequence, static_cast<int>(group)));
    }
    batch_.sequences.push_back(std::move(rows));
    return true;
  }

  Expected<void> add_copy() {
    const std::optional<SequenceId> copy = copy_sequence(kv_, base_, step_tokens_, key_index_);
    if (!copy) {
      return fail(no_room(kv_, "a copy of the prompt"));
    }
    copies_.push_back(*copy);
    return {};
  }

  // Back to the base's length. Sliding windows have let blocks go that the shorter sequence reads;
  // such copies are made again.
  Expected<void> restore_copies() {
    const int depth = kv_.num_tokens(base_);
    const bool shortened = std::all_of(copies_.begin(), copies_.end(), [&](SequenceId copy) {
      return kv_.num_tokens(copy) == depth || kv_.truncate(copy, depth);
    });
    return shortened ? Expected<void>() : make_copies(static_cast<int>(copies_.size()));
  }

  ModelRunner& runner_;
  KVCacheManager& kv_;
  KeyIndex* key_index_;
  int step_tokens_;
  SequenceId base_;
  std::vector<SequenceId> copies_;
  ForwardBatch batch_;
};

}  // namespace

std::unique_ptr<BenchEngine> make_karez_bench_engine(ModelRunner& runner, KVCacheManager& kv,
                                                     KeyIndex* key_index, int step_tokens) {
  return std::make_unique<KarezBenchEngine>(runner, kv, key_index, step_tokens);
}

}  // namespace karez
