// Compresses the aged windows of sequences: scores their pairs, chooses, packs, publishes (Kara,
// arXiv 2607.01237; docs/compression.md).
//
//   rows run, their queries are kept --> scoring, layer by layer --> packing --> published
//                                        |<------ spread over steps ------->|   at its position
//
// When a window is published, and from which queries it is scored, depends on positions alone
// (CompressionSchedule): the work in between may take any number of turns.
//
// Does not know requests or the order of service; CompressionTurns spreads the work over steps.
// Thread: the KV store's owner thread, between steps; the rings are written to during steps.
// Owns: the rings of kept queries, chosen pairs and new blocks of windows under way.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "attention/key_index.h"
#include "attention/query_ring.h"
#include "compress/compression_options.h"
#include "compress/window_score.h"
#include "engine/compression_stats.h"
#include "kv/compression_schedule.h"
#include "kv/kv_cache_manager.h"
#include "sched/sequence_listener.h"

namespace karez {

// One window of one sequence.
struct CompressionTask {
  SequenceId sequence;
  int num_tokens = 0;  // whose KV is written
  CompressionSchedule schedule;
  int window = 0;
  Publication publication;
};

// For a sequence in a store of that spec; its first block, which draws attention, stays as it is.
CompressionSchedule schedule_in(const KVCacheSpec& spec, const CompressionOptions& options,
                                int prompt_tokens);

// What the kept queries of all sequences that run may take where requests choose their windows.
inline constexpr std::int64_t kMostQueryBytes = std::int64_t{1} << 30;

// Tokens of the largest window that a request may choose, so that the queries of so many sequences
// take kMostQueryBytes at most. A window as large as the server's own it may always have.
int most_window_of_request(const KVCacheSpec& spec, const CompressionOptions& own,
                           int max_num_seqs);

class WindowCompressor final : public SequenceListener {
 public:
  // The dimensions of attention that scores need.
  struct Attention {
    float scale = 1.0F;
    float softcap = 0.0F;
  };

  // All must outlive it. index: of kv's blocks; null: there is none. Requires:
  // kv.compressible_group().
  WindowCompressor(KVCacheManager& kv, const KeyIndex* index, const CompressionOptions& options,
                   const Attention& attention);
  ~WindowCompressor() override;

  const CompressionOptions& options() const { return options_; }

  // Where the rows of the sequence keep their queries; made at the first call.
  QueryRing* ring(SequenceId sequence, const CompressionSchedule& schedule);
  // The fork has the same rows behind it.
  void fork(SequenceId of, SequenceId fork) override;
  void forget(SequenceId sequence) override;
  // The blocks of a window that is not published; it is packed again.
  bool give_back_slots(SequenceId sequence) override;

  // Layers that are to be scored or packed until the window is published.
  int units_left(const CompressionTask& task) const;
  // Of these, those that may be done now; and the tokens that may come before they have to be done.
  struct Phase {
    int units = 0;
    int tokens_left = 0;
  };
  Phase phase(const CompressionTask& task) const;
  // Slots that packing takes until publication.
  std::int64_t slots_to_pack(const CompressionSchedule& schedule) const;
  // The same, less those that the window has already.
  std::int64_t slots_to_publish(const CompressionTask& task) const;
  // Whether these are there, so that nobody has to give way.
  bool has_slots_to_publish(const CompressionTask& task) const;

  enum class Outcome {
    kWorking,
    kPublished,
    kNoRoom,  // to pack, or to read what is packed or scored from home
    kLost,    // the window's KV could not be read from home
  };
  // Does up to `units` layers of what may be done now; publishes when all is done and the sequence
  // has come to the publication. units: less what was done.
  Outcome work(const CompressionTask& task, int& units);

  CompressionStats stats() const;

 private:
  struct Window;
  struct State;

  bool may_score(const CompressionTask& task) const;
  bool may_pack(const CompressionTask& task) const;
  void start(State& state, const CompressionTask& task);
  // As they are in the sequence's table.
  BlockTableView window_blocks(const CompressionTask& task) const;
  // One that is due waits for slots that are on their way home.
  bool has_room(const CompressionTask& task, std::int64_t slots);
  // False: load_window() would lose what finds no room.
  bool has_room_to_load(const CompressionTask& task, int layer);
  bool load_window(const CompressionTask& task, int layer);
  // False: too few slots.
  bool take_blocks(State& state, const CompressionTask& task);
  void score_layer(State& state, const CompressionTask& task, int index);
  void pack_layer(State& state, const CompressionTask& task, int index);
  struct Packed {
    int layer;
    int head;
    std::span<const std::byte* const> from;
    std::span<const std::int32_t> kept;
  };
  void archive_rest(State& state, const CompressionTask& task, const Packed& packed,
                    const KeyIndexView& index_view);
  void publish(State& state, const CompressionTask& task);
  std::span<const std::byte* const> window_slots(const CompressionTask& task, int layer, int head);

  KVCacheManager& kv_;
  const KeyIndex* index_;
  CompressionOptions options_;
  Attention attention_;
  int group_;
  std::vector<int> layers_;          // of the group
  std::vector<int> place_of_layer_;  // in layers_; -1: not of the group
  std::unordered_map<SequenceId, std::unique_ptr<State>> states_;
  WindowScorer scorer_;
  CompressionStats counters_;

  std::vector<const std::byte*> slots_;  // scratch of window_slots()
  std::vector<const std::byte*> sinks_;
  std::vector<const std::uint16_t*> query_rows_;
  std::vector<std::int32_t> query_positions_;
  std::vector<float> scores_;
  std::vector<std::int32_t> rest_;
  std::vector<float> rows_;
};

}  // namespace karez
