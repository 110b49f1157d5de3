// What a node of a prefill/decode split has exported and admitted, in numbers.
//
// Thread: values.
#pragma once

#include <cstdint>

#include "remote/kv_exporter.h"
#include "remote/peer_pool.h"

namespace karez {

struct KvProducerStats {
  std::int64_t exported = 0;  // requests, since start
  std::int64_t released = 0;  // of these, fetched and given back
  std::int64_t expired = 0;   // of these, without a heartbeat in time
  std::int64_t failed = 0;    // there was no room at home
  KvExporterStats port;
};

struct KvConsumerStats {
  std::int64_t admitted = 0;  // requests, since start
  std::int64_t failed = 0;    // KV that did not come, or not in time
  std::int64_t lost = 0;      // sequences whose KV could not be read any more while they ran
  // Of admitted ones, until their first step: manifests with the key index, and blocks.
  std::int64_t bytes_admitted = 0;
  std::int64_t bytes_full = 0;  // what all of their blocks would have been
  double admit_seconds = 0;     // from start() to ready, summed
  PeerPoolStats pool;
};

struct KvPeerStats {
  bool produces = false;
  bool consumes = false;
  KvProducerStats producer;
  KvConsumerStats consumer;
};

}  // namespace karez
