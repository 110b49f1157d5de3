#include "kv/store/redis_connection.h"

#include <fmt/format.h>
#include <hiredis/hiredis.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"

namespace karez {
namespace {

constexpr std::size_t kReceiveBytes = 64 << 10U;
constexpr std::size_t kShownBytes = 200;  // of what a server says
constexpr std::size_t kTellingBytes = 16;
constexpr char kTlsAlert = 0x15;  // the first byte of what a TLS server says to plain text

// What hiredis' reader makes of an answer. Null is an error of the reader.
void* make_text(const redisReadTask* task, char* text, std::size_t size) {
  return new RedisReply{
      task->type == REDIS_REPLY_ERROR ? RedisReply::Type::kError : RedisReply::Type::kText, 0,
      std::string(text, size)};
}
// Its memory would be what the server says.
void* refuse_list(const redisReadTask*, int) { return nullptr; }
void* make_integer(const redisReadTask*, long long value) {
  return new RedisReply{RedisReply::Type::kInteger, value, {}};
}
void* make_nothing(const redisReadTask*) { return new RedisReply{}; }
void free_reply(void* reply) { delete static_cast<RedisReply*>(reply); }

redisReplyObjectFunctions reply_functions = {make_text, refuse_list, make_integer, make_nothing,
                                             free_reply};

Expected<void> append(const RedisCommand& command, std::string& bytes) {
  std::vector<const char*> arguments;
  std::vector<std::size_t> sizes;
  for (const std::string_view argument : command) {
    arguments.push_back(argument.data());
    sizes.push_back(argument.size());
  }
  char* text = nullptr;
  const int size = redisFormatCommandArgv(&text, static_cast<int>(arguments.size()),
                                          arguments.data(), sizes.data());
  if (size < 0) {
    return fail(StatusCode::kResourceExhausted, "no memory for a command");
  }
  bytes.append(text, static_cast<std::size_t>(size));
  redisFreeCommand(text);
  return {};
}

}  // namespace

void RedisConnection::FreeReader::operator()(redisReader* reader) const { redisReaderFree(reader); }

RedisConnection::RedisConnection(RedisConnectionOptions options) : options_(std::move(options)) {}

RedisConnection::~RedisConnection() = default;

tl::unexpected<Status> RedisConnection::broken(const std::string& why) {
  socket_.reset();
  return fail(StatusCode::kUnavailable,
              fmt::format("{}: {}", options_.address.host_and_port(), why));
}

tl::unexpected<Status> RedisConnection::broken(const Status& of_socket) {
  // What Redis does at a port with TLS to those who do not speak it.
  const bool may_want_tls = !options_.address.use_tls && socket_ != nullptr && !has_answered_ &&
                            of_socket.code() != StatusCode::kDeadlineExceeded;
  return broken(of_socket.message() +
                (may_want_tls ? "; if it speaks TLS, rediss:// is needed" : ""));
}

// As servers do with the arguments of a command that they do not know, the first bytes of them.
bool RedisConnection::repeats_password(std::string_view text) const {
  const std::string_view password = options_.address.password;
  return !password.empty() && text.find(password.substr(0, kTellingBytes)) != text.npos;
}

std::optional<Status> RedisConnection::problem_of(const RedisReply& reply) const {
  if (reply.type != RedisReply::Type::kError) {
    return std::nullopt;
  }
  const std::string_view text = reply.text;
  const auto begins = [&](std::initializer_list<std::string_view> words) {
    return std::ranges::any_of(words, [&](auto word) { return text.starts_with(word); });
  };
  const StatusCode code = begins({"OOM", "MISCONF"}) ? StatusCode::kResourceExhausted
                          : begins({"NOAUTH", "WRONGPASS", "READONLY", "LOADING", "NOPERM"})
                              ? StatusCode::kUnavailable
                              : StatusCode::kIoError;
  if (repeats_password(text)) {
    return Status(code, "an error with the password in it");
  }
  std::string shown(text.substr(0, kShownBytes));
  std::ranges::replace_if(
      shown, [](char c) { return c < ' ' || c > '~'; }, '?');
  return Status(code, std::move(shown));
}

Expected<void> RedisConnection::connect() {
  const RedisAddress& address = options_.address;
  const Clock::TimePoint deadline = Clock::steady().now() + options_.connect_limit;
  auto socket = PoolSocket::connect(address.host, address.port,
                                    address.use_tls ? &options_.tls : nullptr, deadline);
  if (!socket) {
    return broken(socket.error());
  }
  socket_ = std::move(*socket);
  has_answered_ = false;
  reader_.reset(redisReaderCreateWithFunctions(&reply_functions));
  KAREZ_CHECK(reader_ != nullptr, "hiredis has memory");
  const std::string database = std::to_string(address.database);
  std::vector<RedisCommand> commands;
  if (!address.password.empty()) {
    commands.push_back(address.user.empty() ? RedisCommand{"AUTH", address.password}
                                            : RedisCommand{"AUTH", address.user, address.password});
  }
  if (address.database != 0) {
    commands.push_back({"SELECT", database});
  }
  if (commands.empty()) {
    return {};
  }
  const auto replies = exchange(commands, deadline);
  if (!replies) {
    return fail(replies.error());
  }
  for (std::size_t i = 0; i < replies->size(); ++i) {
    const auto problem = problem_of((*replies)[i]);
    if (!problem) {
      continue;
    }
    if (commands[i].front() != "AUTH") {
      const bool is_about_user = problem->code() == StatusCode::kUnavailable;  // NOAUTH, NOPERM
      return broken(is_about_user ? problem->message()
                                  : fmt::format("it refuses the database {}: {}", database,
                                                problem->message()));
    }
    // The first word says why, and what follows may be what was sent.
    const std::string word = repeats_password((*replies)[i].text)
                                 ? problem->message()
                                 : problem->message().substr(0, problem->message().find(' '));
    return broken("it refuses the user or the password: " + word);
  }
  return {};
}

Expected<std::vector<RedisReply>> RedisConnection::ask(std::span<const RedisCommand> commands) {
  if (socket_ != nullptr && !socket_->is_quiet()) {
    socket_.reset();  // closed, while nobody asked: that costs one connection, and no answer
  }
  if (socket_ == nullptr) {
    if (auto connected = connect(); !connected) {
      return fail(std::move(connected.error()));
    }
  }
  return exchange(commands, Clock::steady().now() + options_.answer_limit);
}

Expected<std::vector<RedisReply>> RedisConnection::exchange(std::span<const RedisCommand> commands,
                                                            Clock::TimePoint deadline) {
  std::string bytes;
  for (const RedisCommand& command : commands) {
    if (auto appended = append(command, bytes); !appended) {
      return fail(std::move(appended.error()));
    }
  }
  if (auto sent = socket_->send(bytes, deadline); !sent) {
    return broken(sent.error());
  }
  std::vector<RedisReply> replies;
  std::size_t received = 0;
  while (replies.size() < commands.size()) {
    void* reply = nullptr;
    if (redisReaderGetReply(reader_.get(), &reply) != REDIS_OK) {
      return broken(reader_->err == REDIS_ERR_OOM ? "it answers with a list" : reader_->errstr);
    }
    if (reply != nullptr) {
      const std::unique_ptr<RedisReply> owner(static_cast<RedisReply*>(reply));
      replies.push_back(std::move(*owner));
      continue;
    }
    if (auto got = receive(received, deadline); !got) {
      return fail(std::move(got.error()));
    }
  }
  if (reader_->pos < reader_->len) {
    return broken("it answers more than it was asked");
  }
  return replies;
}

Expected<void> RedisConnection::receive(std::size_t& bytes, Clock::TimePoint deadline) {
  std::array<char, kReceiveBytes> memory;
  const auto got = socket_->receive(memory, deadline);
  if (!got) {
    return broken(got.error());
  }
  if (!has_answered_ && !options_.address.use_tls && memory[0] == kTlsAlert) {
    return broken("it speaks TLS, rediss:// is needed");
  }
  has_answered_ = true;
  bytes += *got;
  if (bytes > options_.max_answer_bytes) {
    return broken(fmt::format("it answers with more than {} bytes", options_.max_answer_bytes));
  }
  if (redisReaderFeed(reader_.get(), memory.data(), *got) != REDIS_OK) {
    return broken("no memory for its answer");
  }
  return {};
}

Expected<RedisReply> RedisConnection::ask_one(const RedisCommand& command) {
  auto replies = ask(std::span(&command, 1));
  if (!replies) {
    return fail(std::move(replies.error()));
  }
  if (auto problem = problem_of(replies->front())) {
    return fail(std::move(*problem));
  }
  return std::move(replies->front());
}

}  // namespace karez
