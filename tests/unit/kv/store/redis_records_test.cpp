#include "kv/store/redis_records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/store/prompt_records.h"
#include "support/store/redis_server.h"

namespace karez::test {
namespace redis_records_test {

using testing::HasSubstr;
using testing::Not;

std::unique_ptr<RedisRecords> open(const RedisAddress& address) {
  return std::make_unique<RedisRecords>(
      RedisRecordsOptions{.address = address,
                          .shape = small_shape(),
                          .connect_limit = std::chrono::seconds(20),
                          .answer_limit = std::chrono::seconds(20)});
}

// For a server that does not answer: calls that must succeed are made again and again.
std::unique_ptr<RedisRecords> open_impatient(const RedisAddress& address) {
  return std::make_unique<RedisRecords>(
      RedisRecordsOptions{.address = address,
                          .shape = small_shape(),
                          .connect_limit = std::chrono::milliseconds(200),
                          .answer_limit = std::chrono::milliseconds(50)});
}

std::optional<std::size_t> count_at_last(RedisRecords& redis, const RecordName& name) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (std::chrono::steady_clock::now() < end) {
    if (const auto count = redis.count_present(std::vector<RecordName>{name})) {
      return *count;
    }
  }
  return std::nullopt;
}

WriteReport write(RedisRecords& redis, const std::vector<RecordKey>& keys) {
  std::vector<std::vector<std::byte>> records;
  std::vector<RecordWrite> writes;
  for (const RecordKey& key : keys) {
    records.push_back(sealed_record(small_shape(), key));
    writes.push_back({{key.name, 1}, records.back()});
  }
  return redis.write(writes);
}

TEST(RedisRecords, AWrongPasswordIsAFailureThatDoesNotTellIt) {
  const RedisServer server;
  RedisAddress address = server.address();
  address.password = "abracadabra";
  const auto redis = open(address);
  const auto count = redis->count_present(std::vector<RecordName>(1));
  ASSERT_FALSE(count);
  EXPECT_EQ(count.error().code(), StatusCode::kUnavailable);
  EXPECT_THAT(count.error().message(), HasSubstr("refuses the user or the password"));
  EXPECT_THAT(count.error().message(), Not(HasSubstr("abra")));
  EXPECT_THAT(redis->describe(), Not(HasSubstr("abra")));
}

TEST(RedisRecords, ADatabaseThatTheServerDoesNotHaveIsAFailureBeforeTheFirstWrite) {
  const RedisServer server;
  EXPECT_TRUE(open(server.address())->prepare());
  RedisAddress address = server.address();
  address.database = 999;
  const auto prepared = open(address)->prepare();
  ASSERT_FALSE(prepared);
  EXPECT_EQ(prepared.error().code(), StatusCode::kUnavailable);
  EXPECT_THAT(prepared.error().message(), HasSubstr("refuses the database 999"));
}

TEST(RedisRecords, ThatItWantsAPasswordShowsBeforeTheFirstWriteToo) {
  const RedisServer server;
  RedisAddress address = server.address();
  address.password = "";
  const auto prepared = open(address)->prepare();
  ASSERT_FALSE(prepared);
  EXPECT_THAT(prepared.error().message(), HasSubstr(": NOAUTH"));
  EXPECT_THAT(prepared.error().message(), Not(HasSubstr("database")));
}

TEST(RedisRecords, AServerThatIsGoneOrSilentIsAFailureAndAnotherTryConnectsAnew) {
  std::signal(SIGPIPE, SIG_IGN);  // as the server does
  RedisServer server;
  const auto keys = prompt_keys(small_shape(), 3);
  const auto patient = open(server.address());
  ASSERT_FALSE(write(*patient, keys).problem);
  const auto redis = open_impatient(server.address());
  EXPECT_EQ(count_at_last(*redis, keys[0].name), 1U);
  server.freeze();
  EXPECT_FALSE(redis->count_present(std::vector<RecordName>{keys[0].name}));
  server.thaw();
  EXPECT_EQ(count_at_last(*redis, keys[0].name), 1U);
  server.stop();
  std::vector<std::byte> record(small_shape().record_bytes());
  EXPECT_FALSE(redis->read(keys[0].name, record));
  const WriteReport report = write(*redis, keys);
  ASSERT_TRUE(report.problem);
  EXPECT_EQ(report.problem->code(), StatusCode::kUnavailable);
}

TEST(RedisRecords, AFullServerIsSaidToBeFull) {
  const RedisServer server({"--maxmemory", "1", "--maxmemory-policy", "noeviction"});
  const auto redis = open(server.address());
  const WriteReport report = write(*redis, prompt_keys(small_shape(), 1));
  ASSERT_TRUE(report.problem);
  EXPECT_EQ(report.problem->code(), StatusCode::kResourceExhausted);
}

}  // namespace redis_records_test
}  // namespace karez::test
