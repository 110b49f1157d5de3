#include "engine/stored_prefixes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kv/store/disk_records.h"
#include "support/paged_fake_runner.h"
#include "support/store/temporary_folder.h"

namespace karez::test {
namespace stored_prefixes_test {

TEST(StoredPrefixes, TooFewBytesAreRefusedWithTheFlagTheValueAndTheLeast) {
  const TemporaryFolder folder;
  const KVCacheSpec spec = PagedFakeRunner::kv_spec({0, 0});
  StoreOptions options;
  options.disk_directory = folder.path();
  options.disk_bytes = 1 << 30;
  const auto large = make_prefix_store(spec, "fake", options, {});
  ASSERT_TRUE(large);
  const std::int64_t least = DiskRecords::least_cap_bytes((*large)->shape());
  options.disk_bytes = least;
  EXPECT_TRUE(make_prefix_store(spec, "fake", options, {}));
  options.disk_bytes = least - 1;
  const auto refused = make_prefix_store(spec, "fake", options, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message(),
              testing::StartsWith("--kv-disk-bytes is " + std::to_string(least - 1) +
                                  ", allowed are " + std::to_string(least) + " bytes and more"));
  options.disk_bytes_flag = "--kv-disk-prefix-bytes";
  options.disk_bytes = 1;
  EXPECT_THAT(make_prefix_store(spec, "fake", options, {}).error().message(),
              testing::StartsWith("--kv-disk-prefix-bytes is 1, allowed are "));
}

TEST(StoredPrefixes, AFolderThatCannotBeIsRefusedWithItsFlag) {
  StoreOptions options;
  options.disk_directory = "/no/such/folder";
  options.disk_bytes = 1 << 30;
  const auto refused = make_prefix_store(PagedFakeRunner::kv_spec({0, 0}), "fake", options, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kNotFound);
  EXPECT_THAT(refused.error().message(), testing::StartsWith("--kv-disk-path: /no/such/folder"));
}

}  // namespace stored_prefixes_test
}  // namespace karez::test
