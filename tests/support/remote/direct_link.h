// Both ends of a connection without a transport: what one says, the other hears when pump() is
// called, unless the test takes it out on the way.
//
// Thread: one. Owns: both ends; borrows nothing.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "remote/export_session.h"
#include "remote/peer_connection.h"
#include "support/remote/two_nodes.h"

namespace karez::test {

class DirectLink {
 public:
  explicit DirectLink(const PeerConfig& consumer = small_config(),
                      const PeerConfig& producer = small_config(), std::string consumer_secret = "",
                      std::string producer_secret = "")
      : memory(std::size_t{kRoomInBlocks} * producer.block_bytes),
        table(producer, memory.size(), lease_duration, 8) {
    context.config = producer;
    context.secret = std::move(producer_secret);
    context.ready.lease_ms = static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(lease_duration).count());
    context.memory = memory;
    context.table = &table;
    context.stats = &exporter_stats;
    session = std::make_unique<ExportSession>(context, 1);
    options.config = consumer;
    options.secret = std::move(consumer_secret);
    connection = std::make_unique<PeerConnection>(
        options, pool_stats,
        [this](std::vector<std::byte> frame) { to_producer.push_back(std::move(frame)); },
        clock.now());
  }

  // Until nobody has anything to say.
  void pump() {
    while (pump_one()) {
    }
  }
  // One message there, and its answer back.
  bool pump_one() {
    connection->tick(clock.now());
    if (to_producer.empty()) {
      return false;
    }
    const std::vector<std::byte> frame = std::move(to_producer.front());
    to_producer.pop_front();
    ExportSession::Answer answer = session->handle(frame, clock.now());
    was_closed = was_closed || answer.closes;
    if (!answer.frame.empty()) {
      connection->on_frame(answer.frame, clock.now());
    }
    return true;
  }
  // Time in which the consumer looks for what the producer says, and nothing comes.
  void let_pass(Clock::Duration duration) {
    while (duration > Clock::Duration::zero()) {
      const Clock::Duration step = std::min(duration, PeerConnection::kSilenceStep);
      clock.advance(step);
      connection->tick(clock.now());
      duration -= step;
    }
  }
  // Asks for a request and pumps; the outcome if there is one.
  std::optional<Expected<Manifest>> fetch(const RequestKey& key, std::uint64_t epoch) {
    connection->fetch(FetchId(1), key, epoch, clock.now() + std::chrono::hours(1));
    pump();
    std::vector<PeerConnection::FetchEnd> ends;
    connection->take_fetches(ends);
    if (ends.empty()) {
      return std::nullopt;
    }
    lease = ends[0].lease;
    return std::move(ends[0].outcome);
  }

  Clock::Duration lease_duration = std::chrono::seconds(30);
  SharedClock clock;
  std::vector<std::byte> memory;
  ExportTable table;
  KvExporterStats exporter_stats;
  ExportSessionContext context;
  std::unique_ptr<ExportSession> session;
  PeerPoolOptions options;
  PeerPoolStats pool_stats;
  std::deque<std::vector<std::byte>> to_producer;
  std::unique_ptr<PeerConnection> connection;
  std::uint64_t lease = 0;
  bool was_closed = false;
};

}  // namespace karez::test
