// The nodes behind a router: which of them are healthy, how busy they are, and which one is next.
//
//   healthy: --failure()--> out      out: --check(true)--> healthy      check(false): out
//
// A node starts out, until its first check succeeds. Load is what this router knows: its own
// requests in flight. Producers are chosen by the beginning of the prompt (rendezvous hashing: the
// same beginning has the same first choice, and the loss of a node moves only its own beginnings),
// unless that node is much more loaded than the others; consumers by the least load.
// Thread: every call from any thread. Sockets are elsewhere: time comes in as an argument.
// Owns: the nodes' addresses.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "route/node_address.h"
#include "route/node_url.h"

namespace karez {

enum class NodeKind { kPrefill, kDecode };
std::string_view to_string(NodeKind kind);

using NodeId = std::size_t;  // index in the order of creation

struct NodeState {
  NodeUrl url;
  NodeKind kind = NodeKind::kDecode;
  bool is_healthy = false;
  std::string problem;  // of the last failure or check; empty: none
  int in_flight = 0;
  std::int64_t requests = 0;  // sent to it
  std::int64_t failures = 0;  // of these, not answered, or cut off
};

class NodeTable {
 public:
  using Clock = std::chrono::steady_clock;

  NodeTable(const std::vector<NodeUrl>& prefill, const std::vector<NodeUrl>& decode,
            const NameResolver& resolver = resolve_with_system);

  std::size_t size() const { return entries_.size(); }
  const NodeUrl& url(NodeId id) const { return entries_[id].state.url; }
  NodeAddress& address(NodeId id) const { return *entries_[id].address; }
  NodeKind kind(NodeId id) const { return entries_[id].state.kind; }
  std::vector<NodeState> states() const;
  bool any_healthy(NodeKind kind) const;

  // A healthy node with the fewest requests in flight; among equals, in turns.
  std::optional<NodeId> least_loaded(NodeKind kind, std::optional<NodeId> except = {});
  // A healthy node for a prompt with this hash of its beginning.
  std::optional<NodeId> by_prefix(NodeKind kind, std::uint64_t prefix_hash,
                                  std::optional<NodeId> except = {});
  // The first healthy node; decode nodes come before prefill nodes.
  std::optional<NodeId> any(std::optional<NodeId> except = {}) const;

  void begin_request(NodeId id);
  void end_request(NodeId id);
  // A request could not be sent, or was not answered to its end.
  void failure(NodeId id, std::string problem, Clock::time_point now);
  // Of GET /health. Empty: it is well. True: that is news.
  bool check(NodeId id, std::string problem, Clock::time_point now);
  // How long a node has answered no check; zero if it is healthy.
  Clock::duration out_for(NodeId id, Clock::time_point now) const;

  // Prompts whose first choice was too busy.
  std::int64_t spills() const;

 private:
  struct Entry {
    NodeState state;
    std::unique_ptr<NodeAddress> address;
    std::uint64_t hash = 0;  // of its URL
    Clock::time_point out_since{};
  };

  mutable std::mutex mutex_;
  std::vector<Entry> entries_;  // the size, URLs, kinds and addresses never change
  std::size_t turn_ = 0;
  std::int64_t spills_ = 0;
};

// FNV-1a, mixed: for choices, not for secrets.
std::uint64_t hash_text(std::string_view text, std::uint64_t seed = 0);

}  // namespace karez
