#include "route/node_table.h"

#include <algorithm>
#include <utility>

namespace karez {
namespace {

// A prompt goes to another node once its first choice has this much more than the mean.
constexpr double kMaxOverMean = 2.0;
constexpr double kAlwaysAllowed = 2;  // requests in flight that are never too many

std::uint64_t mix(std::uint64_t value) {  // the finaliser of MurmurHash3
  value ^= value >> 33U;
  value *= 0xff51afd7ed558ccdULL;
  value ^= value >> 33U;
  value *= 0xc4ceb9fe1a85ec53ULL;
  return value ^ (value >> 33U);
}

}  // namespace

std::uint64_t hash_text(std::string_view text, std::uint64_t seed) {
  std::uint64_t hash = 0xcbf29ce484222325ULL ^ seed;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  return mix(hash);
}

std::string_view to_string(NodeKind kind) {
  return kind == NodeKind::kPrefill ? "prefill" : "decode";
}

NodeTable::NodeTable(const std::vector<NodeUrl>& prefill, const std::vector<NodeUrl>& decode,
                     const NameResolver& resolver) {
  const auto add = [this, &resolver](const NodeUrl& url, NodeKind kind) {
    Entry entry;
    entry.state.url = url;
    entry.address = std::make_unique<NodeAddress>(url, resolver);
    entry.state.kind = kind;
    entry.state.problem = "not checked yet";
    entry.hash = hash_text(url.text());
    entry.out_since = Clock::now();
    entries_.push_back(std::move(entry));
  };
  for (const NodeUrl& url : prefill) {
    add(url, NodeKind::kPrefill);
  }
  for (const NodeUrl& url : decode) {
    add(url, NodeKind::kDecode);
  }
}

std::vector<NodeState> NodeTable::states() const {
  const std::lock_guard lock(mutex_);
  std::vector<NodeState> states;
  states.reserve(entries_.size());
  for (const Entry& entry : entries_) {
    states.push_back(entry.state);
  }
  return states;
}

bool NodeTable::any_healthy(NodeKind kind) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(entries_, [kind](const Entry& entry) {
    return entry.state.kind == kind && entry.state.is_healthy;
  });
}

std::optional<NodeId> NodeTable::least_loaded(NodeKind kind, std::optional<NodeId> except) {
  const std::lock_guard lock(mutex_);
  std::optional<NodeId> best;
  const std::size_t start = ++turn_;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const NodeId id = (start + i) % entries_.size();
    const NodeState& state = entries_[id].state;
    if (state.kind == kind && state.is_healthy && id != except &&
        (!best || state.in_flight < entries_[*best].state.in_flight)) {
      best = id;
    }
  }
  return best;
}

std::optional<NodeId> NodeTable::by_prefix(NodeKind kind, std::uint64_t prefix_hash,
                                           std::optional<NodeId> except) {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<std::uint64_t, NodeId>> ranked;
  int in_flight = 0;
  for (NodeId id = 0; id < entries_.size(); ++id) {
    const Entry& entry = entries_[id];
    if (entry.state.kind == kind && entry.state.is_healthy && id != except) {
      ranked.emplace_back(mix(entry.hash ^ prefix_hash), id);
      in_flight += entry.state.in_flight;
    }
  }
  if (ranked.empty()) {
    return std::nullopt;
  }
  std::ranges::sort(ranked, std::greater<>());
  const double mean = (in_flight + 1.0) / static_cast<double>(ranked.size());
  const double allowed = std::max(kAlwaysAllowed, kMaxOverMean * mean);
  for (const auto& [weight, id] : ranked) {
    if (entries_[id].state.in_flight + 1 <= allowed) {
      spills_ += id == ranked.front().second ? 0 : 1;
      return id;
    }
  }
  return ranked.front().second;
}

std::optional<NodeId> NodeTable::any(std::optional<NodeId> except) const {
  const std::lock_guard lock(mutex_);
  for (const NodeKind kind : {NodeKind::kDecode, NodeKind::kPrefill}) {
    for (NodeId id = 0; id < entries_.size(); ++id) {
      const NodeState& state = entries_[id].state;
      if (state.kind == kind && state.is_healthy && id != except) {
        return id;
      }
    }
  }
  return std::nullopt;
}

void NodeTable::begin_request(NodeId id) {
  const std::lock_guard lock(mutex_);
  ++entries_[id].state.in_flight;
  ++entries_[id].state.requests;
}

void NodeTable::end_request(NodeId id) {
  const std::lock_guard lock(mutex_);
  --entries_[id].state.in_flight;
}

void NodeTable::failure(NodeId id, std::string problem, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[id];
  ++entry.state.failures;
  if (entry.state.is_healthy) {
    entry.state.is_healthy = false;
    entry.out_since = now;
  }
  entry.state.problem = std::move(problem);
}

bool NodeTable::check(NodeId id, std::string problem, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[id];
  const bool is_well = problem.empty();
  const bool is_news = is_well != entry.state.is_healthy || problem != entry.state.problem;
  if (!is_well && entry.state.is_healthy) {
    entry.out_since = now;
  }
  entry.state.is_healthy = is_well;
  entry.state.problem = std::move(problem);
  return is_news;
}

NodeTable::Clock::duration NodeTable::out_for(NodeId id, Clock::time_point now) const {
  const std::lock_guard lock(mutex_);
  const Entry& entry = entries_[id];
  return entry.state.is_healthy ? Clock::duration::zero() : now - entry.out_since;
}

std::int64_t NodeTable::spills() const {
  const std::lock_guard lock(mutex_);
  return spills_;
}

}  // namespace karez
