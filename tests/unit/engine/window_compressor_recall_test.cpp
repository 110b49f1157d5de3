// What a row finds of a pair that was written long ago and that scoring did not keep.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "attention/paged_attention.h"
#include "attention/query_ring.h"
#include "base/cpu_features.h"
#include "engine/attached_key_index.h"
#include "engine/sequence_tables.h"
#include "engine/window_compressor.h"

namespace karez {
namespace window_compressor_recall_test {

constexpr int kHeadDim = 64;
constexpr float kScale = 0.125F;  // 1 / sqrt(kHeadDim)
constexpr int kPrompt = 16;
constexpr int kTold = 100;  // the pair that is asked for
constexpr int kRunBegin = kTold / kBlockSize * kBlockSize;
constexpr int kAsked = 3150;
static_assert(kAsked - kTold > 3000);
constexpr int kWindows = 5;

// What queries look for while the text is written, what the one at the end does, and where values
// say that they are the pair's.
constexpr std::size_t kTopic = 3;
constexpr std::size_t kQuestion = 5;
constexpr std::size_t kAnswer = 0;
constexpr float kToldValue = 8.0F;

KVCacheSpec spec() {
  KVCacheSpec spec;
  spec.num_layers = 1;
  spec.num_kv_heads = 1;
  spec.head_dim = kHeadDim;
  spec.type = KvType::kBf16;
  spec.layer_windows = {0};
  return spec;
}

struct Listener final : SelectionListener {
  void on_selected(int /*layer*/, std::span<SelectedBlocks> selected) override {
    for (const SelectedBlocks& row : selected) {
      entries.insert(entries.end(), row.blocks.begin(), row.blocks.end());
    }
  }
  std::vector<std::int32_t> entries;
};

struct Found {
  float answer = 0;         // of the last row, in the coordinate that only the pair's value has
  int archived_pages = 0;   // of the sequence
  int pages_attended = 0;   // that the row selected; without a budget all
  CompressionStats counts;  // of the compressor
};

class LongAnswer {
 public:
  LongAnswer(CompressArchive archive, int token_budget) {
    options_.keep = 0.2;
    options_.archive = archive;
    sparse_.token_budget = token_budget;
    const auto slot = static_cast<std::int64_t>(spec().slot_bytes());
    kv_ = KVCacheManager::create(spec(), 300 * slot).value();
    index_ = attach_key_index(*kv_, sparse_, {}).value();
    compressor_ = std::make_unique<WindowCompressor>(*kv_, index_.get(), options_,
                                                     WindowCompressor::Attention{kScale, 0.0F});
    attention_ =
        PagedAttention::create(
            spec(),
            {.num_heads = 1, .scale = kScale, .cpu_level = detected_cpu_level(), .sparse = sparse_})
            .value();
    attention_->set_selection_listener(&listener_);
    sequence_ = kv_->open();
  }
  ~LongAnswer() { kv_->close(sequence_); }
  LongAnswer(const LongAnswer&) = delete;
  LongAnswer& operator=(const LongAnswer&) = delete;

  // Written up to the question, whose row is the last one; windows are compressed as they age,
  // `windows` of them.
  Found ask(int windows) {
    const CompressionSchedule schedule = schedule_in(spec(), options_, kPrompt);
    for (int window = 0; window < windows; ++window) {
      const Publication publication = schedule.publication(window);
      write(schedule, static_cast<int>(publication.position));
      int units = 1000;
      EXPECT_EQ(compressor_->work(
                    {sequence_, kv_->num_tokens(sequence_), schedule, window, publication}, units),
                WindowCompressor::Outcome::kPublished);
    }
    write(schedule, kAsked);
    Found found;
    found.answer = last_row();
    const ArchivedEntries archived = kv_->archived(sequence_);
    found.archived_pages = archived.count();
    found.pages_attended =
        sparse_.is_on()
            ? static_cast<int>(std::ranges::count_if(
                  listener_.entries, [&](int entry) { return archived.contains(entry); }))
            : archived.count();
    found.counts = compressor_->stats();
    return found;
  }

 private:
  // Extends the sequence by rows with these keys and values.
  void store(const std::vector<float>& keys, const std::vector<float>& values) {
    rows_.first_position = kv_->num_tokens(sequence_);
    rows_.num_rows = static_cast<int>(keys.size()) / kHeadDim;
    rows_.first_sparse_position = kAsked;
    EXPECT_TRUE(kv_->extend(sequence_, rows_.num_rows));
    set_tables(rows_, *kv_, sequence_);
    attention_->plan({&rows_, 1});
    attention_->store(0, kv_->layer(0), index_view(), {keys.data(), kHeadDim},
                      {values.data(), kHeadDim}, 0, 1);
  }
  KeyIndexView index_view() const { return index_ ? index_->view(0) : KeyIndexView(); }

  float number() {
    return static_cast<float>(random_()) / static_cast<float>(std::mt19937::max()) * 2.0F - 1.0F;
  }
  void write(const CompressionSchedule& schedule, int num_tokens) {
    std::vector<float> keys;
    std::vector<float> values;
    std::vector<float> query(kHeadDim, 0.0F);
    query[kTopic] = 32.0F;
    for (int position = kv_->num_tokens(sequence_); position < num_tokens; ++position) {
      std::vector<float> key(kHeadDim);
      std::vector<float> value(kHeadDim);
      std::ranges::generate(key, [&] { return number(); });
      std::ranges::generate(value, [&] { return number(); });
      if (position / kBlockSize * kBlockSize == kRunBegin) {
        key[kTopic] = -1.0F;  // of the run nothing is kept
      }
      key[kQuestion] = position == kTold ? 8.0F : 0.0F;
      value[kAnswer] = position == kTold ? kToldValue : 0.0F;
      keys.insert(keys.end(), key.begin(), key.end());
      values.insert(values.end(), value.begin(), value.end());
      if (QueryRing::keeps(position)) {
        compressor_->ring(sequence_, schedule)->record(0, 0, position, query.data(), 1);
      }
    }
    store(keys, values);
  }
  float last_row() {
    const std::vector<float> nothing(kHeadDim, 0.0F);
    store(nothing, nothing);
    std::vector<float> query(kHeadDim, 0.0F);
    query[kQuestion] = 16.0F;
    listener_.entries.clear();
    if (index_) {
      attention_->select(0, index_view(), {query.data(), kHeadDim}, 0, 1);
    }
    std::vector<float> out(kHeadDim);
    attention_->attend(0, kv_->layer(0), {query.data(), kHeadDim}, out.data(), 0, 1);
    return out[kAnswer];
  }

  CompressionOptions options_;
  SparseOptions sparse_;
  Listener listener_;
  std::mt19937 random_{3};
  SequenceRows rows_;  // of the step
  std::unique_ptr<KVCacheManager> kv_;
  std::unique_ptr<KeyIndex> index_;
  std::unique_ptr<WindowCompressor> compressor_;
  std::unique_ptr<PagedAttention> attention_;
  SequenceId sequence_;
};

// Without a token budget and with one of a sixth of the text.
class WindowCompressorRecall : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Budgets, WindowCompressorRecall, testing::Values(0, 512));

TEST_P(WindowCompressorRecall, WithoutCompressionThePairIsFound) {
  LongAnswer answer(CompressArchive::kR4, GetParam());
  EXPECT_NEAR(answer.ask(0).answer, kToldValue, 0.05);
}

TEST_P(WindowCompressorRecall, APairThatScoringDidNotKeepIsFoundInTheArchive) {
  LongAnswer answer(CompressArchive::kR4, GetParam());
  const Found found = answer.ask(kWindows);
  EXPECT_EQ(found.counts.windows, kWindows);
  EXPECT_EQ(found.archived_pages, kWindows * (512 - 96) / kBlockSize);
  EXPECT_GT(found.pages_attended, 0);
  EXPECT_NEAR(found.answer, kToldValue, 0.6) << "4 bits a number";
}

TEST_P(WindowCompressorRecall, WithoutAnArchiveItIsGone) {
  LongAnswer answer(CompressArchive::kOff, GetParam());
  const Found found = answer.ask(kWindows);
  EXPECT_EQ(found.counts.windows, kWindows);
  EXPECT_EQ(found.counts.pairs_dropped, kWindows * (512 - 96));
  EXPECT_EQ(found.archived_pages, 0);
  EXPECT_EQ(found.answer, 0.0F) << "no other value has that coordinate";
}

}  // namespace window_compressor_recall_test
}  // namespace karez
