#include "base/strong_id.h"

#include <gtest/gtest.h>

#include <type_traits>
#include <unordered_set>

namespace karez {
namespace {

using AppleId = StrongId<struct AppleTag>;
using PearId = StrongId<struct PearTag>;

static_assert(!std::is_convertible_v<AppleId, PearId>);
static_assert(!std::is_convertible_v<std::uint32_t, AppleId>);
static_assert(sizeof(AppleId) == sizeof(std::uint32_t));
static_assert(std::is_trivially_copyable_v<AppleId>);

TEST(StrongId, IsNoneUntilItIsGivenAValue) {
  EXPECT_TRUE(AppleId().is_none());
  EXPECT_EQ(AppleId(), AppleId::none());
  EXPECT_FALSE(AppleId(0).is_none());
  EXPECT_EQ(AppleId(7).value, 7U);
}

TEST(StrongId, ComparesAndHashesLikeItsNumber) {
  EXPECT_LT(AppleId(3), AppleId(4));
  EXPECT_NE(AppleId(3), AppleId(4));
  const std::unordered_set<AppleId> ids = {AppleId(3), AppleId(3), AppleId(4)};
  EXPECT_EQ(ids.size(), 2U);
}

}  // namespace
}  // namespace karez
