#include "engine/prefix_saver.h"

#include <utility>
#include <vector>

#include "engine/block_payload.h"

namespace karez {
namespace {

// Sequences are not told to be over. Beginning again costs hashes and nothing else.
constexpr std::size_t kMaxSequences = 1024;
constexpr std::int64_t kBetweenBlocksNs = 1000;

std::int64_t time_of_block(std::int64_t use_time_ns, const RecordKey& key) {
  return use_time_ns - kBetweenBlocksNs * key.index;
}

}  // namespace

PrefixSaver::PrefixSaver(KVCacheManager& kv, PrefixCache& cache, PrefixStore& store,
                         std::function<std::int64_t()> unix_ns)
    : kv_(kv), cache_(cache), store_(store), unix_ns_(std::move(unix_ns)) {
  cache_.on_publish([this](SequenceId sequence, std::string_view salt,
                           std::span<const TokenId> tokens) { published(sequence, salt, tokens); });
}

PrefixSaver::~PrefixSaver() { cache_.on_publish({}); }

void PrefixSaver::published(SequenceId sequence, std::string_view salt,
                            std::span<const TokenId> tokens) {
  auto found = progress_.find(sequence);
  if (found == progress_.end()) {
    if (progress_.size() >= kMaxSequences) {
      progress_.clear();
    }
    found = progress_
                .emplace(sequence, Progress{RecordChain(store_.shape().identity, salt),
                                            std::nullopt, unix_ns_(), false})
                .first;
  }
  Progress& progress = found->second;
  const std::size_t end = tokens.size() / kBlockSize;
  std::vector<RecordUse> uses;
  while (!progress.is_over && (progress.next || progress.chain.num_blocks() < end)) {
    if (!progress.next) {
      progress.next =
          progress.chain.next(tokens.subspan(std::size_t{progress.chain.num_blocks()} * kBlockSize)
                                  .first<kBlockSize>());
    }
    const RecordKey& key = *progress.next;
    if (store_.is_known(key.name)) {
      uses.push_back({key.name, time_of_block(progress.use_time_ns, key)});
    } else if (!save(sequence, key, progress)) {
      break;
    }
    progress.next.reset();
  }
  if (!uses.empty()) {
    store_.touch(uses);
  }
}

bool PrefixSaver::save(SequenceId sequence, const RecordKey& key, Progress& progress) {
  if (!has_payload(kv_, sequence, key.index)) {
    progress.is_over = true;
    store_.count_dropped(1);
    return true;
  }
  auto buffer = store_.room_to_write();
  if (!buffer) {
    store_.count_dropped(1);
    return false;
  }
  copy_payload_out(kv_, sequence, key.index, buffer->payload());
  store_.write(key, time_of_block(progress.use_time_ns, key), std::move(*buffer));
  return true;
}

}  // namespace karez
