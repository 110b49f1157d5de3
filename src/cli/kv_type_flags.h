// The KV type that -ctk and -ctv name together; keys and values have the same one. Of two flags of
// which one is empty, the other counts for both, and a note says so. Both empty: bf16.
#pragma once

#include <string>

#include "base/status.h"
#include "kv/kv_types.h"

namespace karez {

// Fails: kInvalidArgument naming the flag.
Expected<KvType> kv_type_of_flags(const std::string& cache_type_k, const std::string& cache_type_v);

}  // namespace karez
