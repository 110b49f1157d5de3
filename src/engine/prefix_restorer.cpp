#include "engine/prefix_restorer.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "engine/block_payload.h"
#include "kv/residency.h"

namespace karez {
namespace {

// Blocks that are copied in one call beside requests that run.
constexpr std::size_t kBlocksBesideOthers = 16;

std::size_t blocks_before_last_token(std::size_t num_tokens) {
  return num_tokens == 0 ? 0 : (num_tokens - 1) / kBlockSize;
}

}  // namespace

PrefixRestorer::PrefixRestorer(KVCacheManager& kv, PrefixCache& cache, PrefixStore& store,
                               const KeyIndex* key_index, double limit_seconds,
                               std::function<double()> clock)
    : kv_(kv),
      cache_(cache),
      store_(store),
      key_index_(key_index),
      limit_seconds_(limit_seconds),
      clock_(std::move(clock)) {}

PrefixRestorer::~PrefixRestorer() {
  if (turn_) {
    end_turn();
  }
  close_last();
}

bool PrefixRestorer::hold(const Request& request, std::size_t max_tokens) {
  const std::size_t num_blocks =
      blocks_before_last_token(std::min(request.prompt.size(), max_tokens));
  std::size_t known = 0;
  const auto tokens = std::span(request.prompt).first(std::min(request.prompt.size(), max_tokens));
  if (auto match = cache_.match(request.cache_salt, tokens)) {
    known = static_cast<std::size_t>(match->chain.num_blocks);
    kv_.close(match->sequence);
  }
  if (known >= num_blocks) {
    return false;
  }
  Held held;
  held.request = &request;
  held.deadline = clock_() + limit_seconds_;
  held.keys = record_keys(store_.shape().identity, request.cache_salt, request.prompt, num_blocks);
  held.found_end = known;
  std::vector<RecordName> names;
  for (std::size_t i = known; i < num_blocks; ++i) {
    names.push_back(held.keys[i].name);
  }
  held.finding = store_.find(std::move(names));
  if (!held.finding) {
    ++stats_.misses;
    return false;
  }
  held_.emplace(request.id, std::move(held));
  return true;
}

void PrefixRestorer::cancel(RequestId request) {
  const auto found = held_.find(request);
  if (found == held_.end()) {
    std::erase(ready_, request);
    return;
  }
  if (found->second.finding) {
    store_.cancel(*found->second.finding);
  }
  std::erase(queue_, request);
  if (turn_ && turn_->request == request) {
    end_turn();
    std::erase(ready_, request);
  }
  held_.erase(request);
}

std::vector<RequestId> PrefixRestorer::take_ready() { return std::exchange(ready_, {}); }

void PrefixRestorer::let_go(RequestId request) {
  held_.erase(request);
  std::erase(queue_, request);
  ready_.push_back(request);
}

void PrefixRestorer::advance(std::int64_t spare_slots, bool is_idle) {
  // Those that were ready have been looked up by now; and nobody may lack slots because of us.
  close_last();
  take_results();
  const double now = clock_();
  std::vector<RequestId> late;
  for (const auto& [id, held] : held_) {
    if (now >= held.deadline) {
      late.push_back(id);
    }
  }
  std::ranges::sort(late);
  for (const RequestId id : late) {
    if (turn_ && turn_->request == id) {
      end_turn();
      continue;
    }
    if (const auto& finding = held_.at(id).finding) {
      store_.cancel(*finding);
      ++stats_.misses;
    }
    let_go(id);
  }
  if (!is_idle && turn_ && kv_.slots_available() < spare_slots) {
    end_turn();
  }
  do {
    if (!turn_) {
      begin_turn();
    }
    submit_reads();
  } while (take_blocks(is_idle ? 0 : spare_slots,
                       is_idle ? std::numeric_limits<std::size_t>::max() : kBlocksBesideOthers) &&
           is_idle);
  if (!is_idle && kv_.slots_available() < spare_slots) {
    close_last();
  }
  // One that has just begun may have found blocks that were idle.
  if (!is_idle && turn_ && kv_.slots_available() < spare_slots) {
    end_turn();
    close_last();
  }
  // Into the room of what was copied: reads go on while the model computes the step.
  submit_reads();
}

bool PrefixRestorer::holds_slots() const {
  return (turn_ && kv_.num_tokens(turn_->sequence) > 0) ||
         (!last_.is_none() && kv_.num_tokens(last_) > 0);
}

void PrefixRestorer::take_results() {
  results_.clear();
  store_.poll(results_);
  for (PrefixStore::Result& result : results_) {
    if (turn_) {
      const auto read = std::ranges::find(turn_->reads, result.ticket, &Turn::Read::ticket);
      if (read != turn_->reads.end()) {
        read->has_result = true;
        read->buffer = std::move(result.buffer);
        read->is_missing = result.is_missing;
        continue;
      }
    }
    const auto held = std::ranges::find_if(
        held_, [&](const auto& entry) { return entry.second.finding == result.ticket; });
    if (held == held_.end()) {
      continue;
    }
    held->second.finding.reset();
    held->second.found_end += result.num_present;
    if (result.num_present > 0) {
      ++stats_.hits;
      queue_.push_back(held->first);
    } else {
      ++stats_.misses;
      let_go(held->first);
    }
  }
}

void PrefixRestorer::begin_turn() {
  while (!turn_ && !queue_.empty()) {
    const RequestId id = queue_.front();
    queue_.pop_front();
    const Held& held = held_.at(id);
    Turn turn;
    turn.request = id;
    turn.end = held.found_end;
    turn.begin_seconds = clock_();
    // What an earlier turn has brought is there by now.
    const auto tokens = std::span(held.request->prompt);
    if (auto match = cache_.match(held.request->cache_salt,
                                  tokens.first(held.keys.size() * kBlockSize + 1))) {
      turn.sequence = match->sequence;
      turn.chain = match->chain;
      turn.done = static_cast<std::size_t>(match->chain.num_blocks);
    } else {
      turn.sequence = kv_.open();
    }
    turn.next = turn.done;
    turn_ = std::move(turn);
    if (turn_->done >= turn_->end) {
      end_turn();
    }
  }
}

void PrefixRestorer::submit_reads() {
  // What has come and waits to be copied takes room as well.
  while (turn_ && turn_->next < turn_->end && turn_->reads.size() < store_.max_reads()) {
    const auto ticket = store_.read(held_.at(turn_->request).keys[turn_->next]);
    if (!ticket) {
      if (turn_->reads.empty()) {
        end_turn();  // loads have stopped
      }
      return;
    }
    turn_->reads.push_back({*ticket, false, std::nullopt, false});
    ++turn_->next;
  }
}

bool PrefixRestorer::take_blocks(std::int64_t spare_slots, std::size_t max_blocks) {
  std::size_t taken = 0;
  bool is_over = false;
  while (turn_ && taken < max_blocks && !turn_->reads.empty() && turn_->reads.front().has_result) {
    Turn::Read& read = turn_->reads.front();
    const std::int64_t needed = kv_.slots_needed(turn_->sequence, kBlockSize);
    is_over = !read.buffer || needed + spare_slots > kv_.slots_available() ||
              !kv_.extend(turn_->sequence, kBlockSize);
    if (is_over) {
      break;
    }
    copy_payload_in(kv_, turn_->sequence, turn_->done, read.buffer->payload(), key_index_);
    turn_->reads.pop_front();
    ++turn_->done;
    ++taken;
  }
  if (taken > 0) {
    stats_.restored_blocks += static_cast<std::int64_t>(taken);
    stats_.restored_bytes += static_cast<std::int64_t>(taken * store_.shape().payload_bytes);
    const Request& request = *held_.at(turn_->request).request;
    cache_.publish(turn_->sequence, request.cache_salt,
                   std::span(request.prompt).first(turn_->done * kBlockSize), turn_->chain);
    kv_.write_home(turn_->sequence);
    if (kv_.residency() != nullptr) {
      kv_.residency()->advance();
    }
  }
  if (turn_ && (is_over || turn_->done >= turn_->end)) {
    end_turn();
    return true;
  }
  return taken > 0;
}

void PrefixRestorer::doubt_rest() {
  const std::vector<RecordKey>& keys = held_.at(turn_->request).keys;
  std::vector<RecordName> names;
  for (std::size_t i = turn_->done; i < keys.size(); ++i) {
    const std::size_t ahead = i - turn_->done;
    if (ahead >= turn_->reads.size() || !turn_->reads[ahead].buffer) {
      names.push_back(keys[i].name);
    }
  }
  store_.doubt(names);
}

void PrefixRestorer::end_turn() {
  if (std::ranges::any_of(turn_->reads, &Turn::Read::is_missing)) {
    doubt_rest();
  }
  for (const Turn::Read& read : turn_->reads) {
    store_.cancel(read.ticket);
  }
  stats_.seconds += clock_() - turn_->begin_seconds;
  close_last();
  last_ = turn_->sequence;
  const RequestId request = turn_->request;
  turn_.reset();
  let_go(request);
}

void PrefixRestorer::close_last() {
  if (!last_.is_none()) {
    kv_.close(std::exchange(last_, SequenceId::none()));
  }
}

}  // namespace karez
