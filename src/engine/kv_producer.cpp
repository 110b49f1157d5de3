#include "engine/kv_producer.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "engine/exported_index.h"
#include "engine/transfer_note.h"
#include "kv/tier/home_space.h"
#include "kv/window_blocks.h"

namespace karez {

std::uint64_t epoch_of(std::string_view engine_id) {
  return XXH3_64bits(engine_id.data(), engine_id.size());
}

KvProducer::KvProducer(KVCacheManager& kv, const KeyIndex* index,
                       std::shared_ptr<ExportMemory> memory, std::unique_ptr<KvExporter> exporter,
                       Options options)
    : kv_(kv),
      index_(index),
      memory_(std::move(memory)),
      exporter_(std::move(exporter)),
      options_(std::move(options)) {}

KvProducer::~KvProducer() {
  exporter_.reset();
  for (const auto& [key, sequence] : held_) {
    kv_.close(sequence);
  }
}

Expected<KvTransfer> KvProducer::hold(SequenceId sequence, std::span<const TokenId> prompt,
                                      std::span<const float> logits,
                                      std::span<const ListedBlock> working_set) {
  const auto fork = kv_.fork(sequence, static_cast<int>(prompt.size()));
  if (!fork) {
    return fail(StatusCode::kInternal, "the prompt's KV is gone before it could be kept");
  }
  Residency& residency = *kv_.residency();
  kv_.demote(*fork);
  KvExport exported;
  // A call takes no more than the queue holds.
  bool is_home = fill_blocks(*fork, exported);
  for (std::int64_t before = -1; !is_home;) {
    residency.settle();
    residency.advance();
    const std::int64_t written = residency.stats().bytes_written;
    is_home = fill_blocks(*fork, exported);
    if (!is_home && written == std::exchange(before, written)) {
      break;
    }
  }
  if (!is_home) {
    kv_.close(*fork);
    ++counters_.failed;
    // Not the request's fault, and not for long: other nodes may have room now.
    return fail(StatusCode::kUnavailable,
                "there is no room below the fast tier to keep the KV of this prompt for a "
                "consumer; a larger --kv-host-bytes is needed, or fewer prompts at a time");
  }
  add_checksums(exported);
  exported.epoch = epoch_of(options_.engine_id);
  exported.tokens.assign(prompt.begin(), prompt.end());
  fill_index(*fork, exported);
  exported.note =
      encode_transfer_note(logits, places_of(working_set, exported), KvExport::kMaxNoteBytes);
  auto key = exporter_->add(std::move(exported));
  if (!key) {
    kv_.close(*fork);
    ++counters_.failed;
    return fail(StatusCode::kUnavailable, key.error().message());
  }
  ++counters_.exported;
  held_.emplace(*key, *fork);
  KvTransfer transfer;
  transfer.role = KvTransfer::Role::kProduce;
  transfer.remote_host = options_.host;
  transfer.remote_port = exporter_->port();
  transfer.remote_engine_id = options_.engine_id;
  transfer.remote_request_id = key->to_string();
  return transfer;
}

bool KvProducer::fill_blocks(SequenceId sequence, KvExport& exported) const {
  const KVCacheSpec& spec = kv_.spec();
  const std::size_t block_bytes = spec.slot_bytes();
  const std::int64_t count = num_blocks(kv_.num_tokens(sequence));
  exported.num_blocks = static_cast<std::uint32_t>(count);
  exported.blocks.clear();
  for (int layer = 0; layer < spec.num_layers; ++layer) {
    const BlockTableView table = kv_.table(sequence, kv_.group_of_layer(layer));
    for (int head = 0; head < spec.num_kv_heads; ++head) {
      for (std::int64_t i = 0; i < count; ++i) {
        const BlockId block = table[static_cast<std::size_t>(i)];
        RemoteBlock& remote = exported.blocks.emplace_back();
        if (block.is_none()) {
          continue;  // it fell out of the window
        }
        const auto place = kv_.residency()->place_at_home(layer, head, block);
        if (!place) {
          return false;
        }
        remote.offset = place->extent.value * static_cast<std::uint64_t>(options_.extent_bytes) +
                        static_cast<std::uint64_t>(place->index) * block_bytes;
      }
    }
  }
  return true;
}

void KvProducer::add_checksums(KvExport& exported) const {
  for (RemoteBlock& remote : exported.blocks) {
    if (!remote.is_absent()) {
      remote.checksum =
          block_checksum(memory_->bytes().data() + remote.offset, kv_.spec().slot_bytes());
    }
  }
}

void KvProducer::fill_index(SequenceId sequence, KvExport& exported) const {
  if (index_ == nullptr) {
    return;
  }
  const KVCacheSpec& spec = kv_.spec();
  const std::size_t bytes = exported_index_bytes(index_->kind(), spec.head_dim);
  const auto full = static_cast<std::size_t>(kv_.num_tokens(sequence) / kBlockSize);
  exported.index.resize(exported.blocks.size() * bytes);
  std::byte* out = exported.index.data();
  const RemoteBlock* remote = exported.blocks.data();
  for (int layer = 0; layer < spec.num_layers; ++layer) {
    const BlockTableView table = kv_.table(sequence, kv_.group_of_layer(layer));
    for (int head = 0; head < spec.num_kv_heads; ++head) {
      for (std::size_t i = 0; i < exported.num_blocks; ++i, ++remote, out += bytes) {
        if (!remote->is_absent()) {
          export_index(index_->view(layer), head, table[i], spec,
                       memory_->bytes().data() + remote->offset, i < full, out);
        }
      }
    }
  }
}

std::vector<std::uint32_t> KvProducer::places_of(std::span<const ListedBlock> listed,
                                                 const KvExport& exported) const {
  std::vector<std::uint32_t> places;
  for (const ListedBlock& block : listed) {
    const auto entry = static_cast<std::uint32_t>(block.entry);
    if (entry >= exported.num_blocks) {
      continue;  // behind the prompt
    }
    const auto row = static_cast<std::uint32_t>(block.layer * kv_.spec().num_kv_heads) +
                     static_cast<std::uint32_t>(block.kv_head);
    const std::uint32_t place = row * exported.num_blocks + entry;
    if (!exported.blocks[place].is_absent()) {
      places.push_back(place);
    }
  }
  return places;
}

void KvProducer::poll() {
  ended_.clear();
  exporter_->poll(ended_);
  for (const EndedExport& ended : ended_) {
    const auto found = held_.find(ended.key);
    if (found == held_.end()) {
      continue;
    }
    kv_.close(found->second);
    held_.erase(found);
    ++(ended.end == ExportEnd::kReleased ? counters_.released : counters_.expired);
  }
}

KvProducerStats KvProducer::stats() const {
  KvProducerStats stats = counters_;
  stats.port = exporter_->stats();
  return stats;
}

}  // namespace karez
