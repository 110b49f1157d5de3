// Leases, blocks in messages, and the end of things.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "remote/peer_connection.h"

namespace karez {

namespace {

constexpr std::size_t kReadMessagesAtATime = 16;

}  // namespace

bool PeerConnection::is_alive(std::uint64_t lease, Clock::TimePoint now) const {
  const auto found = leases_.find(lease);
  return !is_broken() && found != leases_.end() && now < found->second.valid_until;
}

void PeerConnection::release(std::uint64_t lease) {
  if (leases_.erase(lease) == 0) {
    return;
  }
  fail_reads_of(lease, TransferStatus::kCancelled);
  if (is_ready()) {
    send_(encode(next_request(), ReleaseMessage{lease}));
  }
}

void PeerConnection::lose_lease(std::uint64_t lease) {
  if (leases_.erase(lease) > 0) {
    ++stats_.leases_lost;
  }
  fail_reads_of(lease, TransferStatus::kIoError);
  const auto fetch = std::find_if(fetches_.begin(), fetches_.end(),
                                  [&](const auto& entry) { return entry.second.lease == lease; });
  if (fetch != fetches_.end()) {
    end_fetch(fetch->first,
              fail(StatusCode::kNotFound, "the lease has ended before the manifest was there"));
  }
}

void PeerConnection::take_heartbeat_ack(const WireFrame& frame) {
  const Expected<LeasesMessage> alive = decode_leases(frame.body);
  if (!alive) {
    break_off(alive.error());
    return;
  }
  if (frame.request > last_heartbeat_) {
    break_off({StatusCode::kCorruption, "an answer came to a heartbeat that was not sent"});
    return;
  }
  const auto sent = heartbeats_.find(frame.request);
  if (sent == heartbeats_.end()) {
    return;  // so late that what it prolongs has ended
  }
  const std::vector<std::uint64_t> asked = std::move(sent->second.leases);
  const Clock::TimePoint valid_until = sent->second.sent + lease_duration_;
  heartbeats_.erase(sent);
  for (const std::uint64_t lease : asked) {
    const auto found = leases_.find(lease);
    if (found == leases_.end()) {
      continue;
    }
    if (std::find(alive->leases.begin(), alive->leases.end(), lease) != alive->leases.end()) {
      found->second.valid_until = std::max(found->second.valid_until, valid_until);
    } else {
      lose_lease(lease);
    }
  }
}

void PeerConnection::send_heartbeats(Clock::TimePoint now) {
  std::vector<std::uint64_t> leases;
  for (const auto& [lease, state] : leases_) {
    leases.push_back(lease);
    if (leases.size() == kMaxHeartbeatLeases) {
      break;
    }
  }
  next_heartbeat_ = Clock::TimePoint::max();
  if (leases.empty()) {
    return;
  }
  next_heartbeat_ = now + lease_duration_ / kHeartbeatsPerLease;
  const std::uint64_t request = next_request();
  last_heartbeat_ = request;
  send_(encode_heartbeat(request, LeasesMessage{leases}));
  heartbeats_[request] = {now, std::move(leases)};
}

void PeerConnection::read(std::uint64_t lease, const RemoteRead& read) {
  const std::uint64_t id = ++last_reading_;
  readings_[id] = {read, read.num_blocks};
  if (!is_ready() || !leases_.contains(lease)) {
    finish_block(id, TransferStatus::kIoError);
    return;
  }
  if (is_silent_) {
    finish_block(id, TransferStatus::kDeadlinePassed);
    return;
  }
  for (int block = 0; block < read.num_blocks; ++block) {
    if (read.blocks[static_cast<std::size_t>(block)].is_absent()) {
      finish_block(id, TransferStatus::kChecksumMismatch);
      return;
    }
  }
  for (int block = 0; block < read.num_blocks; ++block) {
    waiting_[lease].push_back({id, block});
  }
}

void PeerConnection::flush(Clock::TimePoint now) {
  const std::size_t limit = blocks_per_message(options_.config);
  while (!waiting_.empty() && read_messages_.size() < kReadMessagesAtATime) {
    // In turns, so that one sequence's prefetch does not hold up another's step.
    auto next = waiting_.upper_bound(last_served_lease_);
    if (next == waiting_.end()) {
      next = waiting_.begin();
    }
    last_served_lease_ = next->first;
    std::deque<BlockOfRead>& blocks = next->second;
    ReadMessage message;
    message.lease = next->first;
    message.asked = now;
    ReadBlocksMessage asked;
    asked.lease = next->first;
    while (!blocks.empty() && message.blocks.size() < limit) {
      const BlockOfRead block = blocks.front();
      blocks.pop_front();
      const auto reading = readings_.find(block.reading);
      if (reading != readings_.end()) {
        message.blocks.push_back(block);
        asked.blocks.push_back(
            reading->second.read.blocks[static_cast<std::size_t>(block.block)].index);
      }
    }
    if (blocks.empty()) {
      waiting_.erase(next);
    }
    if (!message.blocks.empty()) {
      const std::uint64_t request = next_request();
      read_messages_[request] = std::move(message);
      send_(encode(request, asked));
    }
  }
}

void PeerConnection::take_block_data(const WireFrame& frame) {
  const Expected<BlockDataMessage> data = decode_block_data(frame.body, options_.config);
  if (!data) {
    break_off(data.error());
    return;
  }
  const auto found = read_messages_.find(frame.request);
  if (found == read_messages_.end()) {
    return;  // too late; its memory is not ours any more
  }
  const ReadMessage message = std::move(found->second);
  read_messages_.erase(found);
  if (data->lease != message.lease || data->num_blocks != message.blocks.size()) {
    for (const BlockOfRead& block : message.blocks) {
      finish_block(block.reading, TransferStatus::kIoError);
    }
    break_off({StatusCode::kCorruption,
               fmt::format("{} blocks of lease {} came, asked for were {} of lease {}",
                           data->num_blocks, data->lease, message.blocks.size(), message.lease)});
    return;
  }
  for (std::size_t i = 0; i < message.blocks.size(); ++i) {
    const BlockOfRead& block = message.blocks[i];
    const auto reading = readings_.find(block.reading);
    if (reading == readings_.end()) {
      continue;  // another block of it has failed
    }
    const RemoteRead& read = reading->second.read;
    const auto index = static_cast<std::size_t>(block.block);
    if (wire_.take(data->bytes.data() + i * wire_.bytes(), read.blocks[index].checksum,
                   read.memory[index])) {
      ++stats_.blocks_read;
      finish_block(block.reading, TransferStatus::kOk);
    } else {
      finish_block(block.reading, TransferStatus::kChecksumMismatch);
    }
  }
}

void PeerConnection::finish_block(std::uint64_t id, TransferStatus status) {
  const auto reading = readings_.find(id);
  if (reading == readings_.end()) {
    return;
  }
  if (status == TransferStatus::kOk && --reading->second.blocks_left > 0) {
    return;
  }
  read_results_.push_back({reading->second.read.ticket, reading->second.read.reader, status});
  readings_.erase(reading);
}

void PeerConnection::fail_reads_of(std::uint64_t lease, TransferStatus status) {
  if (const auto waiting = waiting_.find(lease); waiting != waiting_.end()) {
    for (const BlockOfRead& block : waiting->second) {
      finish_block(block.reading, status);
    }
    waiting_.erase(waiting);
  }
  std::erase_if(read_messages_, [&](const auto& entry) {
    if (entry.second.lease != lease) {
      return false;
    }
    for (const BlockOfRead& block : entry.second.blocks) {
      finish_block(block.reading, status);
    }
    return true;
  });
}

void PeerConnection::fail_all_reads(TransferStatus status) {
  for (const auto& [id, reading] : std::exchange(readings_, {})) {
    read_results_.push_back({reading.read.ticket, reading.read.reader, status});
  }
  waiting_.clear();
  read_messages_.clear();
}

void PeerConnection::cancel_reads() { fail_all_reads(TransferStatus::kCancelled); }

void PeerConnection::take_reads(std::vector<RemoteReadResult>& results) {
  results.insert(results.end(), read_results_.begin(), read_results_.end());
  read_results_.clear();
}

Clock::TimePoint PeerConnection::tick(Clock::TimePoint now) {
  seen_ = now;
  const Clock::TimePoint last_look = std::exchange(last_tick_, now);
  if (is_broken()) {
    return Clock::TimePoint::max();
  }
  forgive_pause(last_look, now);
  if (!is_ready() && now >= connect_deadline_) {
    break_off({StatusCode::kUnavailable, "the peer did not answer in time"});
    return Clock::TimePoint::max();
  }
  end_late_fetches(now, std::min(now - last_look, kSilenceStep));
  expire(now);
  if (now >= next_heartbeat_) {
    send_heartbeats(now);
  }
  flush(now);
  return next_tick();
}

// The engine's own long step is not the peer's silence: what the peer has said may lie unread.
// Leases are not concerned: the exporter does not stop its clock.
void PeerConnection::forgive_pause(Clock::TimePoint last_look, Clock::TimePoint now) {
  const auto moved = [&](Clock::TimePoint since) {
    const Clock::Duration unseen = now - std::max(since, last_look);
    return since + std::max(unseen - kSilenceStep, Clock::Duration::zero());
  };
  connect_deadline_ += moved(last_look) - last_look;
  heard_ = moved(heard_);
  for (auto& [request, message] : read_messages_) {
    message.asked = moved(message.asked);
  }
}

void PeerConnection::end_late_fetches(Clock::TimePoint now, Clock::Duration passed) {
  bool has_waited = false;
  for (auto fetch = fetches_.begin(); fetch != fetches_.end();) {
    const std::uint64_t key = fetch->first;
    Fetch& late = fetch->second;
    ++fetch;
    if (late.is_waiting()) {
      late.silence += passed;
    }
    if (late.silence >= options_.read_timeout) {
      has_waited = true;
      const auto waited = std::chrono::duration<double>(options_.read_timeout).count();
      end_fetch(key, fail(StatusCode::kDeadlineExceeded,
                          fmt::format("the peer has not answered for {:g} s", waited)));
    } else if (now >= late.deadline) {
      end_fetch(key, fail(StatusCode::kDeadlineExceeded, "the manifest did not come in time"));
    }
  }
  if (has_waited) {
    become_silent();
  }
}

void PeerConnection::become_silent() {
  is_silent_ = true;
  fail_all_reads(TransferStatus::kDeadlinePassed);
  if (!leases_.empty()) {
    next_heartbeat_ = std::min(next_heartbeat_, seen_);  // its answer ends the silence
  }
}

void PeerConnection::expire(Clock::TimePoint now) {
  std::vector<std::uint64_t> lost;
  for (const auto& [lease, state] : leases_) {
    if (now >= state.valid_until) {
      lost.push_back(lease);
    }
  }
  for (const std::uint64_t lease : lost) {
    lose_lease(lease);
  }
  std::erase_if(heartbeats_,
                [&](const auto& entry) { return now >= entry.second.sent + lease_duration_; });
  bool has_waited = false;
  std::erase_if(read_messages_, [&](const auto& entry) {
    if (now - entry.second.asked < options_.read_timeout) {
      return false;
    }
    has_waited = has_waited || heard_ <= entry.second.asked;
    for (const BlockOfRead& block : entry.second.blocks) {
      finish_block(block.reading, TransferStatus::kDeadlinePassed);
    }
    return true;
  });
  if (has_waited) {
    become_silent();
  }
}

Clock::TimePoint PeerConnection::next_tick() const {
  Clock::TimePoint next = next_heartbeat_;
  // Whoever waits for the peer looks for it at least so often: more counts as our own pause.
  const Clock::TimePoint next_look = seen_ + std::min(kSilenceStep, options_.read_timeout);
  if (!is_ready()) {
    next = std::min({next, connect_deadline_, next_look});
  }
  for (const auto& [request, fetch] : fetches_) {
    next = std::min(next, fetch.deadline);
    if (fetch.is_waiting()) {
      next = std::min(next, next_look);
    }
  }
  // They were sent in this order, with the same time limit.
  if (!read_messages_.empty()) {
    next =
        std::min({next, read_messages_.begin()->second.asked + options_.read_timeout, next_look});
  }
  for (const auto& [lease, state] : leases_) {
    next = std::min(next, state.valid_until);
  }
  return next;
}

void PeerConnection::on_broken(const Status& status) {
  if (!is_broken()) {
    break_off(status);
  }
}

void PeerConnection::break_off(const Status& status) {
  state_ = State::kBroken;
  problem_ = status;
  ++stats_.failures;
  stats_.leases_lost += static_cast<std::int64_t>(leases_.size());
  leases_.clear();
  for (auto& [request, fetch] : std::exchange(fetches_, {})) {
    fetch_ends_.push_back({fetch.id, fail(status)});
  }
  fail_all_reads(TransferStatus::kIoError);
  heartbeats_.clear();
  asked_parts_.clear();
}

}  // namespace karez
