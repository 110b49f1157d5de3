// Records in a Redis server, which several nodes share.
//
//   karez:1:IIIIIIIIIIIIIIII:N...N    I: identity, N: name, in hexadecimal digits
//
// The server decides what is kept (its maxmemory-policy). It may vanish, forget and answer anything
// at any time; a connection that fails is made anew with the next call. Its password is in no
// message.
// Thread: as RecordBackend: a connection for each of the two. Owns: both.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kv/store/block_record.h"
#include "kv/store/record_backend.h"

namespace karez {

struct RedisAddress {
  std::string host;
  int port = 6379;
  std::string password;  // empty: none
  int database = 0;
};

// redis://[:PASSWORD@]HOST[:PORT][/DATABASE]; %XX in the password; an IPv6 address in brackets.
// Fails: kInvalidArgument with what is wrong, without the password.
Expected<RedisAddress> parse_redis_address(std::string_view url);

struct RedisRecordsOptions {
  RedisAddress address;
  RecordShape shape;
  std::chrono::milliseconds connect_limit{1000};
  std::chrono::milliseconds answer_limit{3000};  // for each piece of an answer
};

class RedisRecords final : public RecordBackend {
 public:
  // Does not connect yet.
  explicit RedisRecords(RedisRecordsOptions options);
  ~RedisRecords() override;

  Expected<void> prepare() override { return {}; }
  Expected<std::size_t> count_present(std::span<const RecordName> chain) override;
  Expected<ReadOutcome> read(const RecordName& name, std::span<std::byte> record) override;
  WriteReport write(std::span<const RecordWrite> records) override;
  void remove(const RecordName& name) override;
  // The server counts uses itself.
  void touch(std::span<const RecordUse>) override {}
  BackendUsage usage() const override { return {}; }
  std::string describe() const override;

  std::string key_of(const RecordName& name) const;

 private:
  class Connection;

  const RedisRecordsOptions options_;
  std::unique_ptr<Connection> loads_;
  std::unique_ptr<Connection> stores_;
};

}  // namespace karez
