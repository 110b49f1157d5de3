// RedisConnection: commands to a Redis server and their answers, over a PoolSocket that is made
// when it is needed. hiredis writes the commands and reads the answers.
//
// Nothing that the server says is believed to be short or true: an answer may have so many bytes,
// lists are no answer to any command of ours, all answers together have a deadline. A connection
// that has failed, or has said something that nobody asked for, is made anew by the next call.
// The password is in no message: also not where the server repeats it.
// Thread: one. Owns: the connection.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "kv/store/pool_socket.h"
#include "kv/store/redis_address.h"
#include "kv/store/tls_client.h"

struct redisReader;

namespace karez {

struct RedisReply {
  enum class Type { kText, kInteger, kNothing, kError };
  Type type = Type::kNothing;
  std::int64_t integer = 0;
  std::string text;  // of kText and kError

  bool is_integer(std::int64_t value) const { return type == Type::kInteger && integer == value; }
};

using RedisCommand = std::vector<std::string_view>;

struct RedisConnectionOptions {
  RedisAddress address;
  TlsFiles tls{};                                 // with address.use_tls
  std::chrono::milliseconds connect_limit{2000};  // TLS and AUTH included
  std::chrono::milliseconds answer_limit{5000};   // for all answers of one call
  std::size_t max_answer_bytes = 64 << 10U;       // of one call
};

class RedisConnection {
 public:
  // Does not connect yet.
  explicit RedisConnection(RedisConnectionOptions options);
  ~RedisConnection();
  RedisConnection(const RedisConnection&) = delete;
  RedisConnection& operator=(const RedisConnection&) = delete;

  // Sends all commands, then reads as many answers. Fails: kUnavailable: no connection, or it
  // broke.
  Expected<std::vector<RedisReply>> ask(std::span<const RedisCommand> commands);
  // Fails also for an answer that is an error.
  Expected<RedisReply> ask_one(const RedisCommand& command);
  // Of an answer that is an error.
  std::optional<Status> problem_of(const RedisReply& reply) const;

 private:
  struct FreeReader {
    void operator()(redisReader* reader) const;
  };

  Expected<void> connect();
  Expected<std::vector<RedisReply>> exchange(std::span<const RedisCommand> commands,
                                             Clock::TimePoint deadline);
  bool repeats_password(std::string_view text) const;
  Expected<void> receive(std::size_t& bytes, Clock::TimePoint deadline);
  tl::unexpected<Status> broken(const std::string& why);
  tl::unexpected<Status> broken(const Status& of_socket);

  const RedisConnectionOptions options_;
  std::unique_ptr<PoolSocket> socket_;  // null: not connected
  std::unique_ptr<redisReader, FreeReader> reader_;
  bool has_answered_ = false;  // on this connection
};

}  // namespace karez
