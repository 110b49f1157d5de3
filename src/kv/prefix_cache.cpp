#include "kv/prefix_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv/residency.h"
#include "kv/window_blocks.h"

namespace karez {

namespace {

std::span<const TokenId, kBlockSize> tokens_of_block(std::span<const TokenId> tokens,
                                                     std::size_t block) {
  return tokens.subspan(block * kBlockSize).first<kBlockSize>();
}

}  // namespace

PrefixCache::PrefixCache(KVCacheManager& kv, std::string identity, int hash_bits)
    : kv_(kv), identity_(std::move(identity)), hash_bits_(hash_bits) {
  KAREZ_CHECK(hash_bits >= 1 && hash_bits <= 128, "a hash has 1 to 128 bits");
  kv_.on_evict([this](BlockId block) { forget(block); });
}

PrefixCache::~PrefixCache() {
  for (const auto& [block, hash] : entry_of_block_) {
    kv_.uncache(BlockId(block));
  }
  kv_.on_evict({});
}

PrefixHash PrefixCache::next_hash(const PrefixChain& chain, std::string_view salt,
                                  BlockTokens tokens) const {
  const PrefixHash parent = chain.num_blocks == 0 ? root_hash(identity_, salt) : chain.hash;
  return cut_hash(block_hash(parent, tokens), hash_bits_);
}

PrefixCache::Entry* PrefixCache::find(const PrefixHash& hash, const PrefixChain& chain,
                                      std::string_view salt, BlockTokens tokens) {
  const auto found = entries_.find(hash);
  if (found == entries_.end()) {
    return nullptr;
  }
  Entry& entry = found->second;
  const bool same = entry.parent == chain.entry && std::ranges::equal(entry.tokens, tokens) &&
                    (chain.num_blocks > 0 || entry.salt == salt);
  return same ? &entry : nullptr;
}

bool PrefixCache::is_alive(const PrefixChain& chain) const {
  if (chain.num_blocks == 0) {
    return true;
  }
  const auto found = entries_.find(chain.hash);
  return found != entries_.end() && found->second.number == chain.entry;
}

std::optional<PrefixCache::Match> PrefixCache::match(std::string_view salt,
                                                     std::span<const TokenId> tokens) {
  if (tokens.empty()) {
    return std::nullopt;
  }
  const std::vector<LayerGroup>& groups = kv_.layer_groups();
  const std::size_t max_blocks = (tokens.size() - 1) / kBlockSize;
  std::vector<std::vector<BlockId>> tables(groups.size());
  std::vector<std::int64_t> present(groups.size());  // blocks up to here without a gap
  PrefixChain chain;
  PrefixChain usable;  // the longest prefix whose windows are there
  for (std::size_t i = 0; i < max_blocks; ++i) {
    const BlockTokens block_tokens = tokens_of_block(tokens, i);
    const PrefixHash hash = next_hash(chain, salt, block_tokens);
    const Entry* entry = find(hash, chain, salt, block_tokens);
    if (entry == nullptr) {
      break;
    }
    chain = PrefixChain{chain.num_blocks + 1, hash, entry->number};
    bool complete = true;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      tables[g].push_back(entry->blocks[g]);
      present[g] = entry->blocks[g].is_none() ? 0 : present[g] + 1;
      const std::int64_t end = chain.num_blocks;
      const std::int64_t first = first_kept_block(end * kBlockSize, groups[g].window);
      complete = complete && present[g] >= end - first;
    }
    if (complete) {
      usable = chain;
    }
  }
  if (usable.num_blocks == 0) {
    return std::nullopt;
  }
  const int num_tokens = usable.num_blocks * kBlockSize;
  for (std::vector<BlockId>& table : tables) {
    table.resize(static_cast<std::size_t>(usable.num_blocks));
  }
  return Match{kv_.open_cached(num_tokens, std::move(tables)), num_tokens, usable};
}

void PrefixCache::publish(SequenceId sequence, std::string_view salt,
                          std::span<const TokenId> tokens, PrefixChain& chain) {
  KAREZ_CHECK(static_cast<std::int64_t>(tokens.size()) <= kv_.num_tokens(sequence),
              "only tokens with KV can be published");
  const std::size_t end = tokens.size() / kBlockSize;
  if (static_cast<std::size_t>(chain.num_blocks) >= end) {
    return;
  }
  if (!is_alive(chain)) {
    chain = PrefixChain{};  // the way to the new blocks is gone: lay it again
  }
  for (auto i = static_cast<std::size_t>(chain.num_blocks); i < end; ++i) {
    if (!publish_block(sequence, salt, tokens_of_block(tokens, i), chain)) {
      break;
    }
  }
  if (on_publish_) {
    on_publish_(sequence, salt,
                tokens.first(static_cast<std::size_t>(chain.num_blocks) * kBlockSize));
  }
}

bool PrefixCache::publish_block(SequenceId sequence, std::string_view salt, BlockTokens tokens,
                                PrefixChain& chain) {
  const PrefixHash hash = next_hash(chain, salt, tokens);
  Entry* entry = find(hash, chain, salt, tokens);
  const auto index = static_cast<std::size_t>(chain.num_blocks);
  const int num_groups = static_cast<int>(kv_.layer_groups().size());
  // None also where the content is lost: whoever found the block would lose it too.
  const auto own_block = [&](int group) {
    const BlockId own = kv_.table(sequence, group)[index];
    const Residency* residency = kv_.residency();
    return residency != nullptr && residency->is_lost(own) ? BlockId::none() : own;
  };
  if (entry == nullptr) {
    bool has_block = false;
    for (int g = 0; g < num_groups; ++g) {
      has_block = has_block || !own_block(g).is_none();
    }
    if (!has_block) {
      return false;  // it fell out of all windows, or is lost
    }
    if (entries_.contains(hash)) {
      return false;
    }
    entry = &entries_[hash];
    entry->number = ++last_number_;
    entry->parent_hash = chain.hash;
    entry->parent = chain.entry;
    std::ranges::copy(tokens, entry->tokens.begin());
    entry->salt = chain.num_blocks == 0 ? salt : std::string_view();
    entry->blocks.assign(kv_.layer_groups().size(), BlockId::none());
    if (chain.num_blocks > 0) {
      ++entries_.at(chain.hash).num_children;
    }
  }
  for (std::size_t g = 0; g < entry->blocks.size(); ++g) {
    const BlockId own = own_block(static_cast<int>(g));
    if (entry->blocks[g].is_none() && !own.is_none()) {
      kv_.cache(own);
      entry->blocks[g] = own;
      entry_of_block_.emplace(own.value, hash);
    }
  }
  chain = PrefixChain{chain.num_blocks + 1, hash, entry->number};
  return true;
}

void PrefixCache::forget(BlockId block) {
  const auto named = entry_of_block_.find(block.value);
  KAREZ_CHECK(named != entry_of_block_.end(), "the block is not cached");
  const PrefixHash hash = named->second;
  entry_of_block_.erase(named);
  std::ranges::replace(entries_.at(hash).blocks, block, BlockId::none());
  drop_if_unused(hash);
}

void PrefixCache::drop_if_unused(PrefixHash hash) {
  while (true) {
    const auto found = entries_.find(hash);
    const Entry& entry = found->second;
    if (entry.num_children > 0 || !std::ranges::all_of(entry.blocks, &BlockId::is_none)) {
      return;
    }
    const bool is_root_child = entry.parent == 0;
    hash = entry.parent_hash;
    entries_.erase(found);
    if (is_root_child) {
      return;
    }
    --entries_.at(hash).num_children;
  }
}

std::string PrefixCache::check_invariants() const {
  std::size_t blocks = 0;
  for (const auto& [hash, entry] : entries_) {
    for (const BlockId block : entry.blocks) {
      if (block.is_none()) {
        continue;
      }
      ++blocks;
      const auto named = entry_of_block_.find(block.value);
      if (named == entry_of_block_.end() || named->second != hash) {
        return fmt::format("entry {} names block {}, which does not name it", entry.number,
                           block.value);
      }
      if (!kv_.is_cached(block)) {
        return fmt::format("entry {} names block {}, which is not cached", entry.number,
                           block.value);
      }
    }
  }
  if (blocks != entry_of_block_.size()) {
    return fmt::format("entries name {} blocks, {} blocks name entries", blocks,
                       entry_of_block_.size());
  }
  return {};
}

}  // namespace karez
