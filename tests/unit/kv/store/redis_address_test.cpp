#include "kv/store/redis_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace karez {
namespace redis_address_test {

using testing::HasSubstr;
using testing::Not;

TEST(RedisAddress, HasAllPartsOfAUrl) {
  const auto full = parse_redis_address("rediss://no%64e:p%20w%40:x@[::1]:7000/3");
  ASSERT_TRUE(full);
  EXPECT_EQ(full->host, "::1");
  EXPECT_EQ(full->port, 7000);
  EXPECT_EQ(full->user, "node");
  EXPECT_EQ(full->password, "p w@:x");
  EXPECT_EQ(full->database, 3);
  EXPECT_TRUE(full->use_tls);
  EXPECT_EQ(full->to_string(), "rediss://[::1]:7000/3");
  const auto plain = parse_redis_address("redis://pool");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->to_string(), "redis://pool:6379/0");
  EXPECT_TRUE(plain->user.empty());
  EXPECT_TRUE(plain->password.empty());
  EXPECT_FALSE(plain->use_tls);
  const auto old = parse_redis_address("redis://:secret@pool");
  ASSERT_TRUE(old);
  EXPECT_TRUE(old->user.empty());
  EXPECT_EQ(old->password, "secret");
}

TEST(RedisAddress, SaysWhatIsWrongWithoutThePassword) {
  for (const char* url :
       {"http://pool", "redis://", "redis://:secret@", "redis://user@pool", "redis://user:@pool",
        "redis://@pool", "redis://:secret@pool:0", "redis://:secret@pool:x", "redis://pool:99999",
        "redis://:secret%2@pool", "redis://us%er:secret@pool", "redis://:secret@pool/x",
        "redis://:x/secret", "redis://[::1", "redis://[::1]7000", "redis://::1",
        "redis://:secret@pool:1:2", "rediss:/pool", "redisss://pool"}) {
    const auto wrong = parse_redis_address(url);
    ASSERT_FALSE(wrong) << url;
    EXPECT_EQ(wrong.error().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(wrong.error().message(), HasSubstr("rediss:// for TLS"));
    EXPECT_THAT(wrong.error().message(), Not(HasSubstr("secret"))) << url;
  }
}

}  // namespace redis_address_test
}  // namespace karez
