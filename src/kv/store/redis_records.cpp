#include "kv/store/redis_records.h"

#include <fmt/format.h>
#include <hiredis/hiredis.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

namespace karez {
namespace {

struct FreeReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Reply = std::unique_ptr<redisReply, FreeReply>;
using Command = std::vector<std::string_view>;

timeval time_of(std::chrono::milliseconds limit) {
  return {limit.count() / 1000, static_cast<suseconds_t>(limit.count() % 1000 * 1000)};
}

std::string_view text_of(const redisReply& reply) {
  return reply.str == nullptr ? std::string_view() : std::string_view(reply.str, reply.len);
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

int hex_digit(char c) {
  return c >= '0' && c <= '9'   ? c - '0'
         : c >= 'a' && c <= 'f' ? c - 'a' + 10
         : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                : -1;
}

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    const int high = i + 1 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
    if (high < 0 || low < 0) {
      return std::nullopt;
    }
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

// -1: not a number in [0, most].
int number_of(std::string_view text, int most) {
  int value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9' || value > most) {
      return -1;
    }
    value = value * 10 + (c - '0');
  }
  return text.empty() || value > most ? -1 : value;
}

}  // namespace

Expected<RedisAddress> parse_redis_address(std::string_view url) {
  constexpr std::string_view kScheme = "redis://";
  const auto wrong = [](std::string_view what) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("{}; allowed is redis://[:PASSWORD@]HOST[:PORT][/DATABASE]", what));
  };
  if (!url.starts_with(kScheme)) {
    return wrong("it does not begin with redis://");
  }
  url.remove_prefix(kScheme.size());
  RedisAddress address;
  if (const std::size_t at = url.rfind('@'); at != std::string_view::npos) {
    if (url.front() != ':') {
      return wrong("it has a user's name");
    }
    auto password = percent_decoded(url.substr(1, at - 1));
    if (!password) {
      return wrong("its password has a % without two hexadecimal digits");
    }
    address.password = std::move(*password);
    url.remove_prefix(at + 1);
  }
  if (const std::size_t slash = url.find('/'); slash != std::string_view::npos) {
    address.database = number_of(url.substr(slash + 1), 65'535);
    if (address.database < 0) {
      return wrong(fmt::format("its database is {}", url.substr(slash + 1)));
    }
    url = url.substr(0, slash);
  }
  std::string_view port;
  if (url.starts_with('[')) {
    const std::size_t end = url.find(']');
    if (end == std::string_view::npos) {
      return wrong("its address has no ]");
    }
    address.host = url.substr(1, end - 1);
    port = url.substr(end + 1);
  } else {
    const std::size_t colon = url.find(':');
    address.host = url.substr(0, colon);
    port = colon == std::string_view::npos ? std::string_view() : url.substr(colon);
  }
  if (!port.empty()) {
    address.port = port.front() == ':' ? number_of(port.substr(1), 65'535) : -1;
  }
  if (address.host.empty() || address.port < 1) {
    return wrong(address.host.empty() ? "it has no host" : "its port is not 1 to 65535");
  }
  return address;
}

class RedisRecords::Connection {
 public:
  explicit Connection(const RedisRecordsOptions& options) : options_(options) {}

  // Sends all commands, then reads all answers. Fails: kUnavailable: no connection, or it broke.
  Expected<std::vector<Reply>> ask(std::span<const Command> commands) {
    if (context_ == nullptr) {
      if (auto connected = connect(); !connected) {
        return fail(std::move(connected.error()));
      }
    }
    for (const Command& command : commands) {
      std::vector<const char*> arguments;
      std::vector<std::size_t> sizes;
      for (const std::string_view argument : command) {
        arguments.push_back(argument.data());
        sizes.push_back(argument.size());
      }
      if (redisAppendCommandArgv(context_.get(), static_cast<int>(arguments.size()),
                                 arguments.data(), sizes.data()) != REDIS_OK) {
        return broken();
      }
    }
    std::vector<Reply> replies;
    for (std::size_t i = 0; i < commands.size(); ++i) {
      void* reply = nullptr;
      if (redisGetReply(context_.get(), &reply) != REDIS_OK || reply == nullptr) {
        return broken();
      }
      replies.emplace_back(static_cast<redisReply*>(reply));
    }
    return replies;
  }
  Expected<Reply> ask_one(const Command& command) {
    auto replies = ask(std::span(&command, 1));
    if (!replies) {
      return fail(std::move(replies.error()));
    }
    if (auto problem = problem_of(*replies->front())) {
      return fail(std::move(*problem));
    }
    return std::move(replies->front());
  }
  // Of an answer that is an error.
  static std::optional<Status> problem_of(const redisReply& reply) {
    if (reply.type != REDIS_REPLY_ERROR) {
      return std::nullopt;
    }
    const std::string_view text = text_of(reply);
    const StatusCode code = text.starts_with("OOM") || text.starts_with("MISCONF")
                                ? StatusCode::kResourceExhausted
                            : text.starts_with("NOAUTH") || text.starts_with("WRONGPASS") ||
                                    text.starts_with("READONLY") || text.starts_with("LOADING") ||
                                    text.starts_with("NOPERM")
                                ? StatusCode::kUnavailable
                                : StatusCode::kIoError;
    return Status(code, std::string(text.substr(0, 200)));
  }

 private:
  struct FreeContext {
    void operator()(redisContext* context) const { redisFree(context); }
  };

  Expected<void> connect() {
    const RedisAddress& address = options_.address;
    context_.reset(redisConnectWithTimeout(address.host.c_str(), address.port,
                                           time_of(options_.connect_limit)));
    if (context_ == nullptr || context_->err != 0) {
      return broken();
    }
    redisSetTimeout(context_.get(), time_of(options_.answer_limit));
    std::vector<Command> commands;
    if (!address.password.empty()) {
      commands.push_back({"AUTH", address.password});
    }
    const std::string database = std::to_string(address.database);
    commands.push_back({"SELECT", database});
    auto replies = ask(commands);
    if (!replies) {
      return fail(std::move(replies.error()));
    }
    for (const Reply& reply : *replies) {
      if (reply->type == REDIS_REPLY_ERROR) {
        Status problem(StatusCode::kUnavailable, std::string(text_of(*reply).substr(0, 200)));
        context_.reset();
        return fail(std::move(problem));
      }
    }
    return {};
  }
  tl::unexpected<Status> broken() {
    std::string reason = context_ == nullptr ? "no memory" : context_->errstr;
    context_.reset();
    return fail(StatusCode::kUnavailable,
                fmt::format("{}:{}: {}", options_.address.host, options_.address.port, reason));
  }

  const RedisRecordsOptions& options_;
  std::unique_ptr<redisContext, FreeContext> context_;
};

RedisRecords::RedisRecords(RedisRecordsOptions options)
    : options_(std::move(options)),
      loads_(std::make_unique<Connection>(options_)),
      stores_(std::make_unique<Connection>(options_)) {}

RedisRecords::~RedisRecords() = default;

std::string RedisRecords::describe() const {
  return fmt::format("redis://{}:{}/{}", options_.address.host, options_.address.port,
                     options_.address.database);
}

std::string RedisRecords::key_of(const RecordName& name) const {
  return fmt::format("karez:1:{}:{}", to_hex(std::span(options_.shape.identity).first(8)),
                     name.hex());
}

Expected<std::size_t> RedisRecords::count_present(std::span<const RecordName> chain) {
  // Most chains are there as a whole or not at all.
  constexpr std::size_t kAtOnce = 64;
  for (std::size_t begin = 0; begin < chain.size(); begin += kAtOnce) {
    const auto part = chain.subspan(begin, std::min(kAtOnce, chain.size() - begin));
    std::vector<std::string> keys;
    for (const RecordName& name : part) {
      keys.push_back(key_of(name));
    }
    std::vector<Command> commands;
    for (const std::string& key : keys) {
      commands.push_back({"EXISTS", key});
    }
    auto replies = loads_->ask(commands);
    if (!replies) {
      return fail(std::move(replies.error()));
    }
    for (std::size_t i = 0; i < replies->size(); ++i) {
      if (auto problem = Connection::problem_of(*(*replies)[i])) {
        return fail(std::move(*problem));
      }
      if ((*replies)[i]->type != REDIS_REPLY_INTEGER || (*replies)[i]->integer != 1) {
        return begin + i;
      }
    }
  }
  return chain.size();
}

Expected<ReadOutcome> RedisRecords::read(const RecordName& name, std::span<std::byte> record) {
  const std::string key = key_of(name);
  // One byte more than a record has, so that a longer one is noticed and not loaded.
  const std::string last = std::to_string(record.size());
  auto reply = loads_->ask_one({"GETRANGE", key, "0", last});
  if (!reply) {
    return fail(std::move(reply.error()));
  }
  if ((*reply)->type != REDIS_REPLY_STRING || (*reply)->len == 0) {
    return ReadOutcome::kAbsent;
  }
  if ((*reply)->len != record.size()) {
    return ReadOutcome::kWrongLength;
  }
  std::memcpy(record.data(), (*reply)->str, record.size());
  return ReadOutcome::kRead;
}

WriteReport RedisRecords::write(std::span<const RecordWrite> records) {
  WriteReport report;
  for (const RecordWrite& write : records) {
    const std::string key = key_of(write.use.name);
    auto there = stores_->ask_one({"EXISTS", key});
    if (there && (*there)->type == REDIS_REPLY_INTEGER && (*there)->integer == 1) {
      report.stored.push_back(write.use.name);
      continue;
    }
    auto reply = there ? stores_->ask_one({"SET", key, text_of(write.record)}) : std::move(there);
    if (!reply) {
      report.problem = std::move(reply.error());
      break;
    }
    report.stored.push_back(write.use.name);
  }
  return report;
}

void RedisRecords::remove(const RecordName& name) {
  const std::string key = key_of(name);
  static_cast<void>(loads_->ask_one({"DEL", key}));
}

}  // namespace karez
