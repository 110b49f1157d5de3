// KvPeers: what a node of a prefill/decode split has besides its engine. Empty in one that does
// both for itself.
//
// Thread: the engine's. Owns: both sides, which the store must outlive.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "engine/kv_consumer.h"
#include "engine/kv_producer.h"
#include "engine/role_options.h"

namespace karez {

struct KvPeers {
  std::unique_ptr<KvProducer> producer;  // null: this node is none
  std::unique_ptr<KvConsumer> consumer;  // null: this node is none
  KvLoadFailure load_failure = KvLoadFailure::kFail;
  // A line when a prompt is computed here because its KV did not come; or empty.
  std::function<void(std::string_view)> log;
};

}  // namespace karez
