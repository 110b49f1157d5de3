#include "remote/export_table.h"

#include <fmt/format.h>

#include <algorithm>

namespace karez {

ExportTable::ExportTable(const PeerConfig& config, std::size_t memory_bytes,
                         Clock::Duration lease_duration, int max_exports)
    : config_(config),
      memory_bytes_(memory_bytes),
      lease_duration_(lease_duration),
      max_exports_(max_exports) {}

std::optional<Status> ExportTable::check(const KvExport& exported) const {
  const auto wrong = [](std::string_view field, std::uint64_t seen, std::uint64_t allowed) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} of an export: {}, allowed: {}", field, seen, allowed));
  };
  const std::size_t num_tokens = exported.tokens.size();
  if (num_tokens < 1 || num_tokens > config_.max_tokens) {
    return wrong("tokens", num_tokens, config_.max_tokens);
  }
  const std::size_t num_blocks = (num_tokens + config_.block_tokens - 1) / config_.block_tokens;
  if (exported.num_blocks != num_blocks) {
    return wrong("num_blocks", exported.num_blocks, num_blocks);
  }
  const std::size_t num_all = num_blocks * config_.num_layers * config_.num_kv_heads;
  if (exported.blocks.size() != num_all) {
    return wrong("blocks", exported.blocks.size(), num_all);
  }
  if (!exported.index.empty() && exported.index.size() != num_all * config_.index_bytes) {
    return wrong("bytes of the index", exported.index.size(), num_all * config_.index_bytes);
  }
  if (exported.note.size() > KvExport::kMaxNoteBytes) {
    return wrong("bytes of the note", exported.note.size(), KvExport::kMaxNoteBytes);
  }
  for (const RemoteBlock& block : exported.blocks) {
    if (!block.is_absent() && (config_.block_bytes > memory_bytes_ ||
                               block.offset > memory_bytes_ - config_.block_bytes)) {
      return wrong("offset of a block", block.offset, memory_bytes_);
    }
  }
  return std::nullopt;
}

Expected<RequestKey> ExportTable::add(KvExport exported, Clock::TimePoint now) {
  if (std::optional<Status> problem = check(exported)) {
    return fail(std::move(*problem));
  }
  if (num_exports() >= max_exports_) {
    return fail(
        StatusCode::kResourceExhausted,
        fmt::format("{} requests are exported, allowed are {}", num_exports(), max_exports_));
  }
  Expected<RequestKey> key = RequestKey::random();
  if (key) {
    exports_.insert_or_assign(*key, Entry{std::move(exported), now + lease_duration_, {}});
  }
  return key;
}

bool ExportTable::remove(const RequestKey& key) {
  const auto entry = exports_.find(key);
  if (entry == exports_.end()) {
    return false;
  }
  erase(entry);
  return true;
}

void ExportTable::take_ended(Clock::TimePoint now, std::vector<EndedExport>& ended) {
  for (auto entry = exports_.begin(); entry != exports_.end();) {
    const auto next = std::next(entry);
    if (entry->second.deadline <= now) {
      ended_.push_back({entry->first, ExportEnd::kExpired});
      erase(entry);
    }
    entry = next;
  }
  ended.insert(ended.end(), ended_.begin(), ended_.end());
  ended_.clear();
}

Expected<std::uint64_t> ExportTable::open(const RequestKey& key, std::uint64_t epoch,
                                          SessionId session, Clock::TimePoint now) {
  const auto found = exports_.find(key);
  if (found == exports_.end() || found->second.deadline <= now) {
    return fail(StatusCode::kNotFound,
                "the request is not exported here: it has ended, or never was");
  }
  Entry& entry = found->second;
  if (entry.exported.epoch != epoch) {
    return fail(StatusCode::kNotFound,
                fmt::format("the request is exported with epoch {}, asked for is epoch {}",
                            entry.exported.epoch, epoch));
  }
  // A consumer that has come back takes the place of the one that was cut off.
  std::erase_if(entry.leases, [&](std::uint64_t lease) {
    const bool is_orphan = leases_.at(lease).session == 0;
    if (is_orphan) {
      leases_.erase(lease);
    }
    return is_orphan;
  });
  if (entry.leases.size() >= kMaxLeasesPerExport) {
    return fail(StatusCode::kResourceExhausted,
                fmt::format("the request is leased {} times, allowed are {}", entry.leases.size(),
                            kMaxLeasesPerExport));
  }
  const std::uint64_t lease = ++last_lease_;
  leases_[lease] = {key, session};
  entry.leases.push_back(lease);
  entry.deadline = now + lease_duration_;
  return lease;
}

const ExportTable::Lease* ExportTable::lease_of(std::uint64_t lease, SessionId session) const {
  const auto found = leases_.find(lease);
  return found == leases_.end() || found->second.session != session ? nullptr : &found->second;
}

const KvExport* ExportTable::find(std::uint64_t lease, SessionId session,
                                  Clock::TimePoint now) const {
  const Lease* found = lease_of(lease, session);
  if (found == nullptr) {
    return nullptr;
  }
  const Entry& entry = exports_.at(found->key);
  return entry.deadline <= now ? nullptr : &entry.exported;
}

bool ExportTable::prolong(std::uint64_t lease, SessionId session, Clock::TimePoint now) {
  if (find(lease, session, now) == nullptr) {
    return false;
  }
  exports_.at(leases_.at(lease).key).deadline = now + lease_duration_;
  return true;
}

void ExportTable::release(std::uint64_t lease, SessionId session) {
  const Lease* found = lease_of(lease, session);
  if (found == nullptr) {
    return;
  }
  const auto entry = exports_.find(found->key);
  std::erase(entry->second.leases, lease);
  leases_.erase(lease);
  if (entry->second.leases.empty()) {
    ended_.push_back({entry->first, ExportEnd::kReleased});
    erase(entry);
  }
}

void ExportTable::drop_session(SessionId session) {
  for (auto& [id, lease] : leases_) {
    if (lease.session == session) {
      lease.session = 0;
    }
  }
}

void ExportTable::erase(Exports::iterator entry) {
  for (const std::uint64_t lease : entry->second.leases) {
    leases_.erase(lease);
  }
  exports_.erase(entry);
}

}  // namespace karez
