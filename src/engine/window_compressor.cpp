#include "engine/window_compressor.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <limits>
#include <utility>

#include "attention/archive_page.h"
#include "base/check.h"
#include "base/cpu_features.h"
#include "compress/pair_pack.h"
#include "compress/token2chunk.h"
#include "kv/residency.h"

namespace karez {
namespace {

using SteadyClock = std::chrono::steady_clock;

// Packing takes blocks that are free only when it is done: it begins so late.
constexpr int kPackTokens = 16;

std::size_t size_of(std::int64_t value) { return static_cast<std::size_t>(value); }

int round_up(int value, int step) { return (value + step - 1) / step * step; }

}  // namespace

CompressionSchedule schedule_in(const KVCacheSpec& spec, const CompressionOptions& options,
                                int prompt_tokens) {
  return schedule_of(options, prompt_tokens, kBlockSize, pages_per_block(spec.type, spec.head_dim));
}

int most_window_of_request(const KVCacheSpec& spec, const CompressionOptions& own,
                           int max_num_seqs) {
  const std::int64_t num_layers =
      spec.layer_windows.empty() ? spec.num_layers : std::ranges::count(spec.layer_windows, 0);
  const std::int64_t bytes_of_kept = std::max<std::int64_t>(1, num_layers) * spec.num_kv_heads *
                                     spec.head_dim *
                                     static_cast<std::int64_t>(sizeof(std::uint16_t));
  const std::int64_t kept = kMostQueryBytes / max_num_seqs / bytes_of_kept;
  const std::int64_t most = kept * QueryRing::kStride - own.recent_tokens;
  return static_cast<int>(std::clamp<std::int64_t>(
      most / kBlockSize * kBlockSize, own.window_tokens, std::numeric_limits<int>::max()));
}

// One window under way.
struct WindowCompressor::Window {
  int number = -1;
  int scored = 0;  // layers
  int packed = 0;
  std::vector<std::int32_t> kept;  // [scored layers][num_kv_heads][kept_tokens]
  NewBlocks kept_blocks;
  NewBlocks archived_blocks;
};

struct WindowCompressor::State {
  State(std::vector<int> place_of_layer, const KVCacheSpec& spec, int capacity_tokens)
      : ring(std::move(place_of_layer), spec.num_kv_heads, spec.head_dim, capacity_tokens) {}

  QueryRing ring;
  Window window;
};

WindowCompressor::WindowCompressor(KVCacheManager& kv, const KeyIndex* index,
                                   const CompressionOptions& options, const Attention& attention)
    : kv_(kv),
      index_(index),
      options_(options),
      attention_(attention),
      place_of_layer_(size_of(kv.spec().num_layers), -1),
      scorer_(detected_cpu_level()) {
  const std::optional<int> group = kv.compressible_group();
  KAREZ_CHECK(group.has_value() && options.validate().has_value(),
              "there are layers to compress, and valid options");
  group_ = *group;
  layers_ = kv.layer_groups()[size_of(group_)].layers;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    place_of_layer_[size_of(layers_[i])] = static_cast<int>(i);
  }
}

WindowCompressor::~WindowCompressor() = default;

QueryRing* WindowCompressor::ring(SequenceId sequence, const CompressionSchedule& schedule) {
  std::unique_ptr<State>& state = states_[sequence];
  if (state == nullptr) {
    // A window is scored before the first row behind its publication takes a place.
    const int capacity =
        round_up(schedule.window_tokens + schedule.recent_tokens, QueryRing::kStride);
    state = std::make_unique<State>(place_of_layer_, kv_.spec(), capacity);
  }
  return &state->ring;
}

void WindowCompressor::fork(SequenceId of, SequenceId fork) {
  const auto found = states_.find(of);
  if (found == states_.end()) {
    return;
  }
  auto copy =
      std::make_unique<State>(place_of_layer_, kv_.spec(), found->second->ring.capacity_tokens());
  copy->ring = found->second->ring;
  states_[fork] = std::move(copy);
}

void WindowCompressor::forget(SequenceId sequence) { states_.erase(sequence); }

bool WindowCompressor::give_back_slots(SequenceId sequence) {
  const auto found = states_.find(sequence);
  if (found == states_.end() || found->second->window.kept_blocks.blocks().empty()) {
    return false;
  }
  found->second->window.kept_blocks.release();
  found->second->window.archived_blocks.release();
  found->second->window.packed = 0;
  return true;
}

bool WindowCompressor::may_score(const CompressionTask& task) const {
  return task.num_tokens >= task.publication.queries_end;
}

bool WindowCompressor::may_pack(const CompressionTask& task) const {
  return task.num_tokens >=
         std::max(task.publication.queries_end, task.publication.position - kPackTokens);
}

int WindowCompressor::units_left(const CompressionTask& task) const {
  const auto found = states_.find(task.sequence);
  const int all = 2 * static_cast<int>(layers_.size());
  if (found == states_.end() || found->second->window.number != task.window) {
    return all;
  }
  return all - found->second->window.scored - found->second->window.packed;
}

WindowCompressor::Phase WindowCompressor::phase(const CompressionTask& task) const {
  const auto num_layers = static_cast<int>(layers_.size());
  const auto tokens_to = [&](std::int64_t position) {
    return static_cast<int>(std::max<std::int64_t>(0, position - task.num_tokens));
  };
  const int left = units_left(task);
  if (may_pack(task)) {
    return {left, tokens_to(task.publication.position)};
  }
  if (may_score(task)) {
    return {std::max(0, left - num_layers), tokens_to(task.publication.position - kPackTokens)};
  }
  return {0, tokens_to(task.publication.queries_end)};
}

std::int64_t WindowCompressor::slots_to_pack(const CompressionSchedule& schedule) const {
  const std::int64_t packed =
      kv_.slots_of_blocks(group_, schedule.kept_blocks() + schedule.archived_blocks());
  // What is packed stays in its slots; a layer at a time is read back from home beside it: the
  // window and the sink.
  const std::int64_t read =
      kv_.residency() == nullptr
          ? 0
          : std::int64_t{kv_.spec().num_kv_heads} * (schedule.window_tokens / kBlockSize + 1);
  return packed + read;
}

std::int64_t WindowCompressor::slots_to_publish(const CompressionTask& task) const {
  const std::int64_t slots = slots_to_pack(task.schedule);
  const auto found = states_.find(task.sequence);
  if (found == states_.end() || found->second->window.number != task.window ||
      found->second->window.kept_blocks.blocks().empty()) {
    return slots;
  }
  return slots -
         kv_.slots_of_blocks(group_, task.schedule.kept_blocks() + task.schedule.archived_blocks());
}

bool WindowCompressor::has_slots_to_publish(const CompressionTask& task) const {
  return slots_to_publish(task) <= kv_.slots_available();
}

void WindowCompressor::start(State& state, const CompressionTask& task) {
  if (state.window.number != task.window) {
    state.window = {};
    state.window.number = task.window;
  }
}

BlockTableView WindowCompressor::window_blocks(const CompressionTask& task) const {
  const std::int64_t first =
      (task.schedule.begin_of(task.window) - kv_.num_gone(task.sequence)) / kBlockSize;
  return kv_.table(task.sequence, group_)
      .subspan(size_of(first), size_of(task.schedule.window_tokens / kBlockSize));
}

std::span<const std::byte* const> WindowCompressor::window_slots(const CompressionTask& task,
                                                                 int layer, int head) {
  const KVLayerView view = kv_.layer(layer);
  slots_.clear();
  for (const BlockId block : window_blocks(task)) {
    slots_.push_back(view.slot(head, block));
  }
  sinks_.assign(1, view.slot(head, kv_.table(task.sequence, group_).front()));
  return slots_;
}

bool WindowCompressor::has_room(const CompressionTask& task, std::int64_t slots) {
  if (slots > kv_.slots_available() && kv_.residency() != nullptr &&
      task.num_tokens >= task.publication.position) {
    kv_.residency()->settle();
  }
  return slots <= kv_.slots_available();
}

bool WindowCompressor::has_room_to_load(const CompressionTask& task, int layer) {
  if (kv_.residency() == nullptr) {
    return true;
  }
  const KVLayerView view = kv_.layer(layer);
  const BlockId sink = kv_.table(task.sequence, group_).front();
  const BlockTableView window = window_blocks(task);
  bool is_there = true;
  for (int head = 0; head < kv_.spec().num_kv_heads && is_there; ++head) {
    const SlotId* slots = view.slots_of_head(head);
    is_there = !slots[sink.value].is_none() && std::ranges::none_of(window, [&](BlockId block) {
      return slots[block.value].is_none();
    });
  }
  // Those that are there may be evicted for the others.
  return is_there ||
         has_room(task, std::int64_t{kv_.spec().num_kv_heads} * (std::ssize(window) + 1));
}

// False: something is lost.
bool WindowCompressor::load_window(const CompressionTask& task, int layer) {
  Residency* residency = kv_.residency();
  if (residency == nullptr) {
    return true;
  }
  residency->begin_layer(layer);
  for (int head = 0; head < kv_.spec().num_kv_heads; ++head) {
    residency->need(head, kv_.table(task.sequence, group_).front());
    for (const BlockId block : window_blocks(task)) {
      residency->need(head, block);
    }
  }
  return residency->load().empty();
}

bool WindowCompressor::take_blocks(State& state, const CompressionTask& task) {
  if (!has_room(task, slots_to_pack(task.schedule))) {
    return false;
  }
  auto kept = kv_.new_blocks(group_, task.schedule.kept_blocks());
  auto archived = kv_.new_blocks(group_, task.schedule.archived_blocks());
  if (!kept || !archived) {
    return false;
  }
  state.window.kept_blocks = std::move(*kept);
  state.window.archived_blocks = std::move(*archived);
  return true;
}

void WindowCompressor::score_layer(State& state, const CompressionTask& task, int index) {
  const KVCacheSpec& spec = kv_.spec();
  const int layer = layers_[size_of(index)];
  const std::int64_t begin = task.schedule.begin_of(task.window);
  scores_.resize(size_of(task.schedule.window_tokens));
  for (int head = 0; head < spec.num_kv_heads; ++head) {
    query_rows_.clear();
    query_positions_.clear();
    for (std::int64_t position = begin; position < task.publication.queries_end; ++position) {
      if (QueryRing::keeps(static_cast<int>(position))) {
        query_rows_.push_back(state.ring.query(layer, head, static_cast<int>(position)));
        query_positions_.push_back(static_cast<std::int32_t>(position));
      }
    }
    const std::span<const std::byte* const> window = window_slots(task, layer, head);
    const WindowKeys keys{.type = spec.type,
                          .head_dim = spec.head_dim,
                          .window = window,
                          .sinks = sinks_,
                          .first_position = static_cast<int>(begin),
                          .scale = attention_.scale,
                          .softcap = attention_.softcap};
    const auto seed = static_cast<std::uint64_t>(layer * spec.num_kv_heads + head);
    scorer_.score(options_.score, keys, {query_rows_, query_positions_}, seed, scores_);
    const std::vector<std::int32_t> kept = choose_kept(options_.chunk, options_.fixed_chunk_tokens,
                                                       scores_, task.schedule.kept_tokens);
    state.window.kept.insert(state.window.kept.end(), kept.begin(), kept.end());
  }
}

void WindowCompressor::pack_layer(State& state, const CompressionTask& task, int index) {
  const KVCacheSpec& spec = kv_.spec();
  const int layer = layers_[size_of(index)];
  const KVLayerView view = kv_.layer(layer);
  const KeyIndexView index_view = index_ == nullptr ? KeyIndexView() : index_->view(layer);
  const auto kept_tokens = size_of(task.schedule.kept_tokens);
  std::vector<std::byte*> to;
  for (int head = 0; head < spec.num_kv_heads; ++head) {
    const auto kept =
        std::span(state.window.kept)
            .subspan(size_of(index * spec.num_kv_heads + head) * kept_tokens, kept_tokens);
    to.clear();
    for (const BlockId block : state.window.kept_blocks.blocks()) {
      to.push_back(view.slot(head, block));
    }
    const std::span<const std::byte* const> from = window_slots(task, layer, head);
    pack_pairs(spec.type, spec.head_dim, from, kept, to);
    if (!index_view.is_none()) {
      for (std::size_t i = 0; i < to.size(); ++i) {
        index_stored_block(index_view, head, state.window.kept_blocks.blocks()[i], spec.head_dim,
                           spec.type, to[i]);
      }
    }
    if (task.schedule.pages_per_block > 0) {
      archive_rest(state, task, {layer, head, from, kept}, index_view);
    }
  }
}

void WindowCompressor::archive_rest(State& state, const CompressionTask& task, const Packed& packed,
                                    const KeyIndexView& index_view) {
  const KVCacheSpec& spec = kv_.spec();
  rest_.clear();
  auto kept = packed.kept.begin();
  for (std::int32_t pair = 0; pair < task.schedule.window_tokens; ++pair) {
    if (kept != packed.kept.end() && *kept == pair) {
      ++kept;
    } else {
      rest_.push_back(pair);
    }
  }
  const auto dim = size_of(spec.head_dim);
  rows_.resize(2 * dim * kBlockSize);
  float* keys = rows_.data();
  float* values = keys + dim * kBlockSize;
  const KVLayerView view = kv_.layer(packed.layer);
  for (int i = 0; i < task.schedule.archived_pages(); ++i) {
    const BlockId block =
        state.window.archived_blocks.blocks()[size_of(i / task.schedule.pages_per_block)];
    const int page = i % task.schedule.pages_per_block;
    std::byte* bytes = view.slot(packed.head, block) + archive_page_offset(spec.head_dim, page);
    load_pairs(spec.type, spec.head_dim, packed.from,
               std::span(rest_).subspan(size_of(i) * kBlockSize, kBlockSize), keys, values);
    write_archive_page(spec.head_dim, bytes, {keys, dim}, {values, dim});
    if (!index_view.is_none() && index_view.has_pages()) {
      index_archive_page(index_view, packed.head, block, page, spec.head_dim, bytes);
    }
  }
}

void WindowCompressor::publish(State& state, const CompressionTask& task) {
  const CompressionSchedule& schedule = task.schedule;
  const auto rows = static_cast<std::int64_t>(layers_.size()) * kv_.spec().num_kv_heads;
  const std::int64_t blocks_saved =
      schedule.window_tokens / kBlockSize - schedule.kept_blocks() - schedule.archived_blocks();
  ++counters_.windows;
  counters_.pairs_kept += rows * schedule.kept_tokens;
  (schedule.pages_per_block > 0 ? counters_.pairs_archived : counters_.pairs_dropped) +=
      rows * (schedule.window_tokens - schedule.kept_tokens);
  counters_.bytes_saved += kv_.slots_of_blocks(group_, blocks_saved) *
                           static_cast<std::int64_t>(kv_.spec().slot_bytes());
  std::vector<std::uint8_t> pages;
  for (int i = 0; i < schedule.archived_pages(); ++i) {
    pages.push_back(static_cast<std::uint8_t>(i % schedule.pages_per_block));
  }
  kv_.compress(task.sequence, group_, {schedule.begin_of(task.window), schedule.window_tokens},
               std::move(state.window.kept_blocks), std::move(state.window.archived_blocks), pages);
  // The next step may need their slots for what its layers read.
  kv_.write_home(task.sequence);
  state.window = {};
}

WindowCompressor::Outcome WindowCompressor::work(const CompressionTask& task, int& units) {
  if (!may_score(task)) {
    return Outcome::kWorking;
  }
  const auto begin = SteadyClock::now();
  const auto num_layers = static_cast<int>(layers_.size());
  ring(task.sequence, task.schedule);
  State& state = *states_.at(task.sequence);
  start(state, task);
  Window& window = state.window;
  Outcome outcome = Outcome::kWorking;
  while (units > 0 && outcome == Outcome::kWorking && window.packed < num_layers) {
    const bool scores = window.scored < num_layers;
    if (!scores && !may_pack(task)) {
      break;
    }
    int& done = scores ? window.scored : window.packed;
    const int layer = layers_[size_of(done)];
    const bool needs_blocks = !scores && window.kept_blocks.blocks().empty();
    if ((needs_blocks && !take_blocks(state, task)) || !has_room_to_load(task, layer)) {
      outcome = Outcome::kNoRoom;
      break;
    }
    if (load_window(task, layer)) {
      if (scores) {
        score_layer(state, task, done);
      } else {
        pack_layer(state, task, done);
      }
      ++done;
      --units;
    } else {
      outcome = Outcome::kLost;
    }
    if (kv_.residency() != nullptr) {
      kv_.residency()->end_step();
    }
  }
  if (outcome == Outcome::kWorking && window.packed == num_layers &&
      task.num_tokens >= task.publication.position) {
    publish(state, task);
    outcome = Outcome::kPublished;
  } else if (outcome == Outcome::kLost) {
    window = {};
  }
  const double seconds = std::chrono::duration<double>(SteadyClock::now() - begin).count();
  counters_.seconds += seconds;
  counters_.longest_seconds = std::max(counters_.longest_seconds, seconds);
  return outcome;
}

CompressionStats WindowCompressor::stats() const {
  CompressionStats stats = counters_;
  for (const auto& [sequence, state] : states_) {
    stats.query_bytes += static_cast<std::int64_t>(
        state->ring.bytes() + state->window.kept.capacity() * sizeof(std::int32_t));
  }
  return stats;
}

}  // namespace karez
