#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/bytes.h"
#include "base/check.h"
#include "engine/bench_engine.h"
#include "engine/block_loader.h"
#include "engine/sequence_copy.h"
#include "engine/sequence_tables.h"
#include "kv/kv_cache_manager.h"
#include "kv/residency.h"

namespace karez {
namespace {

Status no_room(const KVCacheManager& kv, std::string_view what) {
  const KVCacheStats stats = kv.stats();
  return Status(StatusCode::kResourceExhausted,
                fmt::format("no room for {}: {} of the cap of {} are in use", what,
                            format_bytes(stats.used_bytes), format_bytes(stats.cap_bytes)));
}

// Moves the baseline so that what was counted from `from` to `to` does not count as after it.
void leave_out(ResidencyStats& baseline, const ResidencyStats& from, const ResidencyStats& to) {
  baseline.stall_seconds += to.stall_seconds - from.stall_seconds;
  baseline.blocks_needed += to.blocks_needed - from.blocks_needed;
  baseline.demand_misses += to.demand_misses - from.demand_misses;
  baseline.bytes_read += to.bytes_read - from.bytes_read;
  baseline.bytes_written += to.bytes_written - from.bytes_written;
  baseline.prefetch = to.prefetch.since(from.prefetch.since(baseline.prefetch));
}

class KarezBenchEngine final : public BenchEngine {
 public:
  KarezBenchEngine(ModelRunner& runner, KVCacheManager& kv, KeyIndex* key_index,
                   BlockLoader* loader, LookaheadMeter* meter, int step_tokens, int max_running)
      : runner_(runner),
        kv_(kv),
        key_index_(key_index),
        loader_(loader),
        meter_(meter),
        step_tokens_(step_tokens),
        max_running_(max_running),
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
      if (auto done = forward(); !done) {
        return fail(done.error());
      }
    }
    return seconds_since(start);
  }

  Expected<void> make_copies(int num_copies) override {
    drop_copies();
    num_wanted_ = num_copies;
    const int num_running = max_running_ == 0 ? num_copies : std::min(num_copies, max_running_);
    for (int i = 0; i < num_running; ++i) {
      if (auto copied = add_copy(); !copied) {
        return copied;
      }
    }
    return {};
  }

  Expected<BenchDecode> decode(std::span<const TokenId> tokens) override {
    const auto wanted = static_cast<std::size_t>(num_wanted_);
    KAREZ_CHECK(!copies_.empty() && tokens.size() % wanted == 0, "tokens: [steps][copies]");
    static_cast<void>(runner_.take_step_times());
    std::optional<ResidencyStats> before = residency_stats();
    if (loader_ != nullptr) {
      static_cast<void>(loader_->take_missed());
    }
    BenchDecode result;
    for (std::size_t first = 0; first < wanted; first += copies_.size()) {
      const std::optional<ResidencyStats> unready = residency_stats();
      if (auto ready = restore_copies(); !ready) {
        return fail(ready.error());
      }
      if (before) {
        leave_out(*before, *unready, *residency_stats());
      }
      const std::size_t count = std::min(copies_.size(), wanted - first);
      const auto start = std::chrono::steady_clock::now();
      for (std::size_t row = first; row < tokens.size(); row += wanted) {
        const bool has_next = row + wanted < tokens.size();
        if (auto done = decode_step(
                tokens.subspan(row, count),
                has_next ? tokens.subspan(row + wanted, count) : std::span<const TokenId>());
            !done) {
          return fail(done.error());
        }
        ++result.steps;
      }
      result.seconds += seconds_since(start);
    }
    result.times = runner_.take_step_times();
    if (before) {
      const ResidencyStats after = *residency_stats();
      result.traffic = BenchTraffic{.stall_seconds = after.stall_seconds - before->stall_seconds,
                                    .blocks_needed = after.blocks_needed - before->blocks_needed,
                                    .demand_misses = after.demand_misses - before->demand_misses,
                                    .bytes_read = after.bytes_read - before->bytes_read,
                                    .bytes_written = after.bytes_written - before->bytes_written,
                                    .missed = loader_->take_missed(),
                                    .prefetch = after.prefetch.since(before->prefetch),
                                    .agreement = std::nullopt};
      if (meter_ != nullptr) {
        result.traffic->agreement = meter_->take();
      }
    }
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
    in_batch_.clear();
    batch_.key_index = key_index_;
  }

  std::optional<ResidencyStats> residency_stats() const {
    return kv_.residency() == nullptr ? std::nullopt : std::optional(kv_.residency()->stats());
  }

  // next: the tokens of the step after, which a drafter that is always right would say; for probes.
  Expected<void> decode_step(std::span<const TokenId> tokens, std::span<const TokenId> next) {
    start_batch();
    const int num_hints = loader_ != nullptr && loader_->wants_probes() && !next.empty() ? 1 : 0;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      batch_.output_rows.push_back(static_cast<int>(batch_.tokens.size()));
      batch_.tokens.push_back(tokens[i]);
      if (num_hints > 0) {
        batch_.tokens.push_back(next[i]);
      }
      if (!append_rows(copies_[i], 1 + num_hints, num_hints)) {
        return fail(no_room(kv_, "a decode step"));
      }
    }
    return forward();
  }

  // Computes the batch, and sends home what it filled.
  Expected<void> forward() {
    if (loader_ == nullptr) {
      auto logits = runner_.forward(batch_, kv_);
      return logits ? Expected<void>() : fail(logits.error());
    }
    loader_->begin_step(kv_, batch_.sequences);
    auto logits = runner_.forward(batch_, kv_);
    const auto reads = loader_->end_step();
    if (!logits) {
      return fail(logits.error());
    }
    if (std::any_of(reads.begin(), reads.end(), [](const auto& read) { return read.is_lost; })) {
      return fail(StatusCode::kResourceExhausted,
                  fmt::format("a layer of this step reads more than the fast tier holds, or what "
                              "is at home could not be read ({})",
                              kv_.residency()->describe()));
    }
    for (std::size_t i = 0; i < in_batch_.size(); ++i) {
      const SequenceRows& rows = batch_.sequences[i];
      if (rows.num_hint_rows > 0) {
        const int length = rows.first_position + rows.num_rows - rows.num_hint_rows;
        KAREZ_CHECK(kv_.truncate(in_batch_[i], length), "a step releases nothing that it reads");
      }
      kv_.write_home(in_batch_[i]);
    }
    kv_.residency()->advance();
    return {};
  }

  // Makes room for the sequence's next rows and enters them into the batch.
  bool append_rows(SequenceId sequence, int num_rows, int num_hint_rows = 0) {
    SequenceRows rows;
    rows.num_hint_rows = num_hint_rows;
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
    set_tables(rows, kv_, sequence);
    batch_.sequences.push_back(std::move(rows));
    in_batch_.push_back(sequence);
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
    return shortened ? Expected<void>() : make_copies(num_wanted_);
  }

  ModelRunner& runner_;
  KVCacheManager& kv_;
  KeyIndex* key_index_;
  BlockLoader* loader_;
  LookaheadMeter* meter_;
  int step_tokens_;
  int max_running_;     // 0: all
  int num_wanted_ = 0;  // copies; no more than max_running_ exist
  SequenceId base_;
  std::vector<SequenceId> copies_;
  ForwardBatch batch_;
  std::vector<SequenceId> in_batch_;
};

}  // namespace

std::unique_ptr<BenchEngine> make_karez_bench_engine(ModelRunner& runner, KVCacheManager& kv,
                                                     KeyIndex* key_index, BlockLoader* loader,
                                                     LookaheadMeter* meter, int step_tokens,
                                                     int max_running) {
  return std::make_unique<KarezBenchEngine>(runner, kv, key_index, loader, meter, step_tokens,
                                            max_running);
}

}  // namespace karez
