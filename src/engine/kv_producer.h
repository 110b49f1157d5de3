// KvProducer: keeps the KV of prompts that other nodes will decode, and says where it is.
//
//   prompt computed --hold()--> at home, exported --released, or no heartbeat in time--> freed
//
// What is held is a fork of the request's sequence, so it costs no slots, only room at home. Its
// blocks do not move while it is there, because nobody extends it.
// Thread: the store's owner, between steps. Owns: the exporter and the forks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/key_index.h"
#include "base/status.h"
#include "engine/kv_peer_stats.h"
#include "engine/wanted_blocks.h"
#include "kv/kv_cache_manager.h"
#include "remote/export_memory.h"
#include "remote/kv_exporter.h"
#include "sched/request.h"

namespace karez {

// Exports of a process have this epoch: what a consumer was told by an earlier one is refused.
std::uint64_t epoch_of(std::string_view engine_id);

class KvProducer {
 public:
  struct Options {
    std::string host;       // that consumers are told
    std::string engine_id;  // of this process
    std::int64_t extent_bytes = 0;
  };
  // memory: that of the store's home tier: extent e begins at byte e x extent_bytes. index: null:
  // no key index travels. All but the exporter must outlive it.
  KvProducer(KVCacheManager& kv, const KeyIndex* index, std::shared_ptr<ExportMemory> memory,
             std::unique_ptr<KvExporter> exporter, Options options);
  ~KvProducer();
  KvProducer(const KvProducer&) = delete;
  KvProducer& operator=(const KvProducer&) = delete;

  // The sequence has the KV of all prompt tokens. Waits until all of it is at home. logits: f32
  // [vocab_size] of the last one, which travel too: a consumer computes nothing of the prompt.
  // working_set: what it will read first, of the sequence; may be empty.
  // Fails: kUnavailable if there is no room at home; as KvExporter::add().
  Expected<KvTransfer> hold(SequenceId sequence, std::span<const TokenId> prompt,
                            std::span<const float> logits,
                            std::span<const ListedBlock> working_set = {});
  // Frees what has ended.
  void poll();
  // poll() has something to do sooner or later.
  bool holds_any() const { return !held_.empty(); }
  KvProducerStats stats() const;

 private:
  // False: a block is not at home.
  bool fill_blocks(SequenceId sequence, KvExport& exported) const;
  void add_checksums(KvExport& exported) const;
  void fill_index(SequenceId sequence, KvExport& exported) const;
  std::vector<std::uint32_t> places_of(std::span<const ListedBlock> listed,
                                       const KvExport& exported) const;

  KVCacheManager& kv_;
  const KeyIndex* index_;
  std::shared_ptr<ExportMemory> memory_;
  std::unique_ptr<KvExporter> exporter_;
  Options options_;
  std::map<RequestKey, SequenceId> held_;
  std::vector<EndedExport> ended_;
  KvProducerStats counters_;
};

}  // namespace karez
