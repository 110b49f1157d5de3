#include "engine/kv_identity.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/hex.h"

namespace karez {

std::string kv_identity(const Sha256Digest& model, const KVCacheSpec& spec) {
  return fmt::format(
      "model {} layers {} kv heads {} head dim {} type {} windows {} block {} slot bytes {}",
      to_hex(model), spec.num_layers, spec.num_kv_heads, spec.head_dim, to_string(spec.type),
      fmt::join(spec.layer_windows, ","), kBlockSize, spec.slot_bytes());
}

}  // namespace karez
