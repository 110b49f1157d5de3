#include "engine/kv_identity.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace karez {
namespace kv_identity_test {

KVCacheSpec spec() {
  return {.num_layers = 4,
          .num_kv_heads = 2,
          .head_dim = 64,
          .type = KvType::kBf16,
          .layer_windows = {}};
}

// Another text would make everything that was stored under it unknown.
TEST(KvIdentity, StaysTheSameOverVersions) {
  const std::string zeros(64, '0');
  EXPECT_EQ(kv_identity({}, spec()),
            "model " + zeros +
                " layers 4 kv heads 2 head dim 64 type bf16 windows  block 16 slot bytes 4096");
}

TEST(KvIdentity, ChangesWithEverythingThatChangesTheKv) {
  std::set<std::string> seen = {kv_identity({}, spec())};
  Sha256Digest model = {};
  model.back() = std::byte{1};
  EXPECT_TRUE(seen.insert(kv_identity(model, spec())).second);
  KVCacheSpec other = spec();
  other.num_layers = 5;
  EXPECT_TRUE(seen.insert(kv_identity({}, other)).second);
  other = spec();
  other.num_kv_heads = 4;
  EXPECT_TRUE(seen.insert(kv_identity({}, other)).second);
  other = spec();
  other.head_dim = 128;
  EXPECT_TRUE(seen.insert(kv_identity({}, other)).second);
  for (const KvType type : {KvType::kF32, KvType::kQ8_0}) {
    other = spec();
    other.type = type;
    EXPECT_TRUE(seen.insert(kv_identity({}, other)).second);
  }
  // The same windows in another order are another model, and so is none.
  for (const std::vector<int>& windows :
       {std::vector<int>{0, 0, 0, 0}, {0, 512, 0, 512}, {512, 0, 512, 0}, {0, 1024, 0, 1024}}) {
    other = spec();
    other.layer_windows = windows;
    EXPECT_TRUE(seen.insert(kv_identity({}, other)).second);
  }
}

}  // namespace kv_identity_test
}  // namespace karez
