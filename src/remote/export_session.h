// ExportSession: one consumer as the exporter sees it. A message comes in, the answer goes out; it
// knows no transport and no lock.
//
// Before the handshake has ended only its messages are understood.
// Thread: none of its own; the table is used during handle(), under the caller's lock.
// Ownership: borrows all that it is made of.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "remote/export_table.h"
#include "remote/wire_blocks.h"
#include "remote/wire_messages.h"

namespace karez {

// What all sessions of an exporter share.
struct ExportSessionContext {
  PeerConfig config;
  std::string secret;
  ReadyMessage ready;
  std::span<const std::byte> memory;
  ExportTable* table = nullptr;
  KvExporterStats* stats = nullptr;
};

class ExportSession {
 public:
  struct Answer {
    std::vector<std::byte> frame;  // empty: nothing to say
    bool closes = false;           // the peer made no sense; cut it off
  };

  ExportSession(const ExportSessionContext& context, SessionId id)
      : context_(context), id_(id), config_(context.config), wire_(context.config) {}

  Answer handle(std::span<const std::byte> bytes, Clock::TimePoint now);
  bool is_ready() const { return state_ == State::kReady; }
  // The connection has ended. A consumer that finds fault with this side leaves without a word.
  void end(const Status& why);
  // Why its handshake has failed, "here" being this node; nullopt: it has not.
  const std::optional<Status>& refusal() const { return refusal_; }

 private:
  enum class State { kNew, kGreeted, kReady, kRefused };

  Answer hello(const WireFrame& frame);
  Answer confirm(const WireFrame& frame);
  Answer ready(const WireFrame& frame, Clock::TimePoint now);
  Answer fetch(const WireFrame& frame, Clock::TimePoint now);
  Answer fetch_part(const WireFrame& frame, Clock::TimePoint now);
  Answer heartbeat(const WireFrame& frame, Clock::TimePoint now);
  Answer read_blocks(const WireFrame& frame, Clock::TimePoint now);
  Answer refuse(std::uint64_t request, const Status& status);
  void count_refusal(const Status& why);
  Answer bad_message(std::uint64_t request, const Status& status);
  static Answer error(std::uint64_t request, const Status& status);

  const ExportSessionContext& context_;
  SessionId id_;
  PeerConfig config_;  // this node's, with the wire type that the consumer has asked for
  WireBlocks wire_;
  State state_ = State::kNew;
  std::optional<Status> refusal_;
  Nonce consumer_nonce_ = {};
  Nonce own_nonce_ = {};
};

}  // namespace karez
