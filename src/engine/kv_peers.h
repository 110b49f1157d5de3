// KvPeers: what a node of a prefill/decode split has besides its engine. Empty in one that does
// both for itself.
//
// Thread: the engine's. Owns: both sides, which the store must outlive.
#pragma once

#include <memory>

#include "engine/kv_consumer.h"
#include "engine/kv_producer.h"
#include "engine/role_options.h"

namespace karez {

struct KvPeers {
  std::unique_ptr<KvProducer> producer;  // null: this node is none
  std::unique_ptr<KvConsumer> consumer;  // null: this node is none
  KvLoadFailure load_failure = KvLoadFailure::kFail;
};

}  // namespace karez
