// Where the blocks of one request are, layer by layer: what the page draws.
//
// Thread: a value.
// Errors: none.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/kv_cache_manager.h"
#include "sched/request.h"

namespace karez {

struct KvMap {
  // Of a cell: the blocks of all KV heads of a layer at one place of the context.
  enum Where : std::uint8_t {
    kNowhere = 0,  // out of the layer's window, or less is left after compression
    kHome = 1,     // all below the fast tier
    kPartly = 2,   // some in the fast tier
    kFast = 3,     // all in the fast tier
    kWasRead = 4,  // added to the above: the last step read it, in one KV head at least
  };
  RequestId request = 0;
  int num_tokens = 0;
  int num_layers = 0;
  int num_blocks = 0;
  // [num_layers][num_blocks]; a compressed sequence has fewer blocks in layers without a window,
  // and the rest of their cells is kNowhere.
  std::vector<std::uint8_t> cells;
  KVCacheManager::CompressedPart compressed;
};

// Of a sequence of the step that has just been computed.
KvMap make_kv_map(const KVCacheManager& kv, RequestId request, SequenceId sequence);

}  // namespace karez
