// A text that names everything besides the tokens that changes the KV: what its owner stores under
// another text is never found.
//
// Thread: pure.
#pragma once

#include <string>

#include "kv/kv_cache_spec.h"
#include "kv/store/sha256.h"

namespace karez {

// model: model_digest(); it covers RoPE, which is metadata of the file.
std::string kv_identity(const Sha256Digest& model, const KVCacheSpec& spec);

}  // namespace karez
