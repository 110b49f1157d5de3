// Runs PagedAttention over a real KVCacheManager with scattered slots and made-up rows.
//
// Queries, keys and values are functions of (content, position, head, coordinate), so the same
// sequence can be fed in any chunking, and its expected output can be computed apart.
// Thread: used by one thread; run() starts its own workers.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "attention/paged_attention.h"
#include "kv/kv_cache_manager.h"
#include "support/reference_attention.h"

namespace karez::test {

struct HarnessOptions {
  KvType type = KvType::kF32;
  CpuLevel cpu_level = CpuLevel::kPortable;
  int num_heads = 3;
  int num_kv_heads = 1;
  int head_dim = 64;
  std::vector<int> layer_windows = {0};
  float scale = 0.0F;  // 0: 1 / sqrt(head_dim)
  float softcap = 0.0F;
  int max_threads = 1;
  int max_tokens = 8192;     // over all sequences
  float query_range = 1.0F;  // queries lie in [-range, range]
  float key_range = 1.0F;
  SparseOptions sparse = {};  // with an index, whose kind it names, where it is on
  bool has_pages = false;     // the index has room for archived pages
};

// Which of a window's positions a KV head of a layer keeps, in the order in which they are packed:
// a multiple of 16, equally many everywhere.
using KeptPairs = std::function<std::vector<int>(int layer, int kv_head)>;

// Rows to run: the next num_rows tokens of a sequence.
struct RowRange {
  SequenceId sequence;
  int num_rows = 1;
  int first_sparse_position = SequenceRows::kNeverSparse;
  int num_hint_rows = 0;
  QueryRing* queries = nullptr;
};

class AttentionHarness {
 public:
  // Tokens whose keys and values are infinite.
  static constexpr std::uint32_t kInfiniteContent = 0xffffffffU;

  explicit AttentionHarness(const HarnessOptions& options);

  KVCacheManager& kv() { return *kv_; }
  // `content` picks the made-up numbers. Sequences of equal content hold equal tokens.
  // position_shift: the numbers of position p are those of p + position_shift.
  SequenceId open(std::uint32_t content, int position_shift = 0);
  SequenceId fork(SequenceId parent, int num_tokens);
  void close(SequenceId sequence);

  // Puts the kept pairs of positions [begin, end), whole blocks, into new blocks in the place of
  // those, for layers without a window; old blocks that nobody shares are filled with infinities.
  // The next window of a sequence begins where the last one ended. archived: pairs that become
  // archived pages (HarnessOptions::has_pages); those of all windows follow the kept ones.
  void compress(SequenceId sequence, int begin, int end, const KeptPairs& kept,
                const KeptPairs& archived = nullptr);
  // Position behind what was compressed.
  int compressed_end(SequenceId sequence) const { return contents_.at(sequence).compressed_end; }
  // Writes those pairs over the ones at first_place of a sequence that was never compressed.
  // coded: as they are after a round trip through an archived page.
  void overwrite(SequenceId sequence, int first_place, const KeptPairs& kept, bool coded = false);

  // Whether the index of each complete block is what is made anew of the block's bytes.
  bool index_follows_from_slots(SequenceId sequence);

  // Extends each sequence, stores its rows and attends, in every layer.
  // Returns [num_layers][rows of all ranges][num_heads * head_dim].
  std::vector<float> run(const std::vector<RowRange>& ranges, int num_threads);
  // The same without attending.
  void fill(SequenceId sequence, int num_tokens);

  // What run() should have returned for `ranges`, its latest argument: the reference over keys,
  // values and queries rounded as the KV type rounds them.
  std::vector<float> expected(const std::vector<RowRange>& ranges);

  PagedAttention& attention() { return *attention_; }
  // Of the latest run(): blocks that a sparse row selected, by (layer, index in ranges, position,
  // KV head).
  using SelectionKey = std::tuple<int, int, int, int>;
  const std::map<SelectionKey, std::vector<std::int32_t>>& selections() const {
    return listener_.selections;
  }
  // Sees the lists of each layer first, and may shorten them.
  void set_listener(std::function<void(int layer, std::span<SelectedBlocks>)> listener) {
    listener_.before = std::move(listener);
  }
  // Times that the listener was called in the latest run(), one for each layer.
  int listener_calls() const { return listener_.calls; }

  std::int64_t planned_read_bytes(int layer) const { return attention_->planned_read_bytes(layer); }

 private:
  enum class Kind : std::uint32_t { kQuery, kKey, kValue };
  struct Listener final : SelectionListener {
    void on_selected(int layer, std::span<SelectedBlocks> selected) override;
    std::map<SelectionKey, std::vector<std::int32_t>> selections;
    std::function<void(int, std::span<SelectedBlocks>)> before;
    int calls = 0;
  };
  // What open() and compress() made of a sequence.
  struct Content {
    std::uint32_t numbers = 0;
    int shift = 0;
    int compressed_end = 0;            // position
    std::vector<BlockId> blocks;       // the table up to there, but for pages
    std::vector<BlockId> page_blocks;  // entries behind it
    std::vector<std::uint8_t> pages;   // of these
    // By layer and KV head. Absent: places themselves.
    std::map<std::pair<int, int>, std::vector<int>> positions;
    std::map<std::pair<int, int>, std::vector<int>> page_positions;

    int num_blocks() const { return static_cast<int>(blocks.size() + pages.size()); }
    int num_gone() const { return compressed_end - num_blocks() * kBlockSize; }
  };
  // f32 [positions][head_dim] each.
  struct Pairs {
    std::vector<float> keys;
    std::vector<float> values;
  };
  Pairs pairs_of(const Content& content, int kv_head, std::span<const int> positions) const;
  // After a round trip through archived pages. Requires: whole pages.
  Pairs coded(const Pairs& pairs) const;
  // Adds whole pages to the sequence.
  void archive(Content& content, std::span<const int> layers, const KeptPairs& archived);
  void scatter_slots();
  int windowless_group() const;
  // 16 of the pairs, from first on.
  void write_block(const Pairs& pairs, std::size_t first, int layer, int kv_head, BlockId block);
  void extend(SequenceId sequence, int num_rows);
  float number(Kind kind, std::uint32_t content, int position, int head, int i) const;
  std::vector<float> row(Kind kind, std::uint32_t content, int position) const;
  const ReferenceTokens& reference_tokens(const Content& content, int num_tokens);
  // The same in the order of a layer's places.
  ReferenceTokens packed_tokens(const Content& content, int layer, const ReferenceTokens& tokens,
                                int num_places) const;
  std::vector<float> step(const std::vector<RowRange>& ranges, int num_threads, bool attend);

  HarnessOptions options_;
  std::unique_ptr<KVCacheManager> kv_;
  std::optional<KeyIndex> index_;
  std::unique_ptr<PagedAttention> attention_;
  Listener listener_;
  std::map<SequenceId, Content> contents_;
  std::map<std::pair<std::uint32_t, int>, ReferenceTokens> references_;
};

// Largest absolute difference; NaN if any element of either is NaN.
double largest_difference(const std::vector<float>& a, const std::vector<float>& b);

bool same_bits(const std::vector<float>& a, const std::vector<float>& b);

// Calls body(thread) on num_threads threads at once and waits for all.
void run_on_threads(int num_threads, const std::function<void(int)>& body);

}  // namespace karez::test
