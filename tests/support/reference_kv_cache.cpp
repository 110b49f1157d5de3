#include "support/reference_kv_cache.h"

#include <cstddef>

namespace karez {

namespace {

std::size_t blocks_for(int num_tokens) {
  std::size_t blocks = 0;
  while (static_cast<int>(blocks) * kBlockSize < num_tokens) {
    ++blocks;
  }
  return blocks;
}

}  // namespace

ReferenceKVCache::ReferenceKVCache(const KVCacheSpec& spec, std::int64_t num_slots)
    : groups_(spec.layer_groups()), num_kv_heads_(spec.num_kv_heads), num_slots_(num_slots) {}

void ReferenceKVCache::open(int name) {
  sequences_[name].tables.resize(groups_.size());
  sequences_[name].compressed.resize(groups_.size());
}

bool ReferenceKVCache::fork(int parent, int child, int num_tokens) {
  Sequence copy = sequences_.at(parent);
  if (!has_all_that_is_read(copy, num_tokens)) {
    return false;
  }
  cut(copy, num_tokens);
  sequences_[child] = copy;
  return true;
}

bool ReferenceKVCache::truncate(int name, int num_tokens) {
  Sequence& sequence = sequences_.at(name);
  if (!has_all_that_is_read(sequence, num_tokens)) {
    return false;
  }
  cut(sequence, num_tokens);
  return true;
}

void ReferenceKVCache::close(int name) { sequences_.erase(name); }

bool ReferenceKVCache::extend(int name, int num_tokens, std::uint32_t first_value) {
  Sequence& sequence = sequences_.at(name);
  release_unread(sequence);
  const Sequence before = sequence;
  const std::int64_t copies_before = copies_;
  const int old_tokens = sequence.num_tokens;
  sequence.num_tokens += num_tokens;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    std::vector<ReferenceBlockPtr>& table = sequence.tables[g];
    if (num_tokens > 0 && old_tokens % kBlockSize != 0 && references(table.back()) > 1) {
      table.back() = std::make_shared<ReferenceBlock>(*table.back());
      ++copies_;
    }
    while (table.size() < blocks_for(sequence.num_tokens - sequence.compressed[g].num_gone)) {
      table.push_back(std::make_shared<ReferenceBlock>());
    }
  }
  if (slots_used() > num_slots_) {
    sequence = before;
    copies_ = copies_before;
    return false;
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (int i = 0; i < num_tokens; ++i) {
      const int position = old_tokens + i - sequence.compressed[g].num_gone;
      ReferenceBlock& block = *sequence.tables[g][static_cast<std::size_t>(position / kBlockSize)];
      block.values[static_cast<std::size_t>(position % kBlockSize)] =
          first_value + static_cast<std::uint32_t>(i);
    }
  }
  return true;
}

void ReferenceKVCache::compress(int name, int group, Window window,
                                const std::vector<ReferenceBlockPtr>& kept,
                                const std::vector<ReferenceBlockPtr>& pages) {
  Sequence& sequence = sequences_.at(name);
  const auto g = static_cast<std::size_t>(group);
  const std::vector<ReferenceBlockPtr> old = sequence.tables[g];
  Compressed& done = sequence.compressed[g];
  const int first = (window.begin - done.num_gone) / kBlockSize;
  if (done.num_entries == 0) {
    done.archived_begin = first;
    done.num_entries = first;
  }
  std::vector<ReferenceBlockPtr> table;
  const auto take = [&](const std::vector<ReferenceBlockPtr>& from, int begin, int end) {
    table.insert(table.end(), from.begin() + begin, from.begin() + end);
  };
  const int archived_end = done.archived_begin + done.num_archived;
  const int num_pages = static_cast<int>(pages.size());
  const int num_kept = static_cast<int>(kept.size());
  take(old, 0, archived_end);
  take(pages, 0, num_pages);
  take(old, archived_end, done.num_entries);  // kept of earlier windows
  take(kept, 0, num_kept);
  take(old, (window.end - done.num_gone) / kBlockSize, static_cast<int>(old.size()));
  sequence.tables[g] = table;
  done.num_gone += window.end - window.begin - kBlockSize * (num_kept + num_pages);
  done.num_archived += num_pages;
  done.num_entries += num_kept + num_pages;
  done.compressed_end = window.end;
}

void ReferenceKVCache::pin(int name, int pin_name) {
  auto& pinned = pins_[pin_name];
  for (const std::vector<ReferenceBlockPtr>& table : sequences_.at(name).tables) {
    std::vector<ReferenceBlockPtr>& blocks = pinned.emplace_back();
    for (const ReferenceBlockPtr& block : table) {
      if (block != nullptr) {
        blocks.push_back(block);
      }
    }
  }
}

void ReferenceKVCache::unpin(int pin_name) { pins_.erase(pin_name); }

const std::vector<ReferenceBlockPtr>& ReferenceKVCache::table(int name, int group) const {
  return sequences_.at(name).tables[static_cast<std::size_t>(group)];
}

int ReferenceKVCache::references(const ReferenceBlockPtr& block) const {
  int count = 0;
  for (const auto& [name, sequence] : sequences_) {
    for (const std::vector<ReferenceBlockPtr>& table : sequence.tables) {
      for (const ReferenceBlockPtr& entry : table) {
        count += entry == block ? 1 : 0;
      }
    }
  }
  return count;
}

std::vector<std::set<ReferenceBlockPtr>> ReferenceKVCache::live_blocks() const {
  std::vector<std::set<ReferenceBlockPtr>> live(groups_.size());
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (const auto& [name, sequence] : sequences_) {
      live[g].insert(sequence.tables[g].begin(), sequence.tables[g].end());
    }
    for (const auto& [name, pinned] : pins_) {
      live[g].insert(pinned[g].begin(), pinned[g].end());
    }
    live[g].erase(nullptr);
  }
  return live;
}

bool ReferenceKVCache::has_all_that_is_read(const Sequence& sequence, int num_tokens) const {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (num_tokens < sequence.compressed[g].compressed_end) {
      return false;
    }
    if (groups_[g].window == 0) {
      continue;  // nothing else is ever given up
    }
    for (int token = 0; token < num_tokens; ++token) {
      const bool read = token > num_tokens - groups_[g].window;
      const bool beside_next = token / kBlockSize == num_tokens / kBlockSize;
      if ((read || beside_next) &&
          sequence.tables[g][static_cast<std::size_t>(token / kBlockSize)] == nullptr) {
        return false;
      }
    }
  }
  return true;
}

void ReferenceKVCache::release_unread(Sequence& sequence) {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].window == 0) {
      continue;
    }
    for (std::size_t i = 0; i < sequence.tables[g].size(); ++i) {
      const int last_token = static_cast<int>(i) * kBlockSize + kBlockSize - 1;
      if (last_token <= sequence.num_tokens - groups_[g].window) {
        sequence.tables[g][i] = nullptr;
      }
    }
  }
}

void ReferenceKVCache::cut(Sequence& sequence, int num_tokens) {
  sequence.num_tokens = num_tokens;
  for (std::size_t g = 0; g < sequence.tables.size(); ++g) {
    sequence.tables[g].resize(blocks_for(num_tokens - sequence.compressed[g].num_gone));
  }
}

std::int64_t ReferenceKVCache::slots_used() const {
  const auto live = live_blocks();
  std::int64_t slots = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    slots += static_cast<std::int64_t>(live[g].size()) *
             static_cast<std::int64_t>(groups_[g].layers.size()) * num_kv_heads_;
  }
  return slots;
}

std::int64_t ReferenceKVCache::blocks_used() const {
  std::int64_t blocks = 0;
  for (const auto& live : live_blocks()) {
    blocks += static_cast<std::int64_t>(live.size());
  }
  return blocks;
}

std::int64_t ReferenceKVCache::blocks_shared() const {
  std::int64_t shared = 0;
  for (const auto& live : live_blocks()) {
    for (const ReferenceBlockPtr& block : live) {
      shared += references(block) > 1 ? 1 : 0;
    }
  }
  return shared;
}

}  // namespace karez
