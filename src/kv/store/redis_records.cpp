#include "kv/store/redis_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hex.h"

namespace karez {
namespace {

constexpr std::size_t kAnswerBytes = 64 << 10U;  // of answers that have no record in them

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

RedisConnectionOptions connection_of(const RedisRecordsOptions& options) {
  return {.address = options.address,
          .tls = options.tls,
          .connect_limit = options.connect_limit,
          .answer_limit = options.answer_limit,
          .max_answer_bytes = options.shape.record_bytes() + kAnswerBytes};
}

}  // namespace

RedisRecords::RedisRecords(const RedisRecordsOptions& options)
    : address_(options.address),
      shape_(options.shape),
      loads_(connection_of(options)),
      stores_(connection_of(options)) {}

std::string RedisRecords::describe() const { return address_.to_string(); }

std::string RedisRecords::key_of(const RecordName& name) const {
  return fmt::format("karez:1:{}:{}", to_hex(std::span(shape_.identity).first(8)), name.hex());
}

Expected<void> RedisRecords::prepare() {
  const std::string key = key_of({});  // of ours: a user may be allowed no other
  if (auto reply = stores_.ask_one({"EXISTS", key}); !reply) {
    return fail(std::move(reply.error()));
  }
  return {};
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
    std::vector<RedisCommand> commands;
    for (const std::string& key : keys) {
      commands.push_back({"EXISTS", key});
    }
    auto replies = loads_.ask(commands);
    if (!replies) {
      return fail(std::move(replies.error()));
    }
    for (std::size_t i = 0; i < replies->size(); ++i) {
      if (auto problem = loads_.problem_of((*replies)[i])) {
        return fail(std::move(*problem));
      }
      if (!(*replies)[i].is_integer(1)) {
        return begin + i;
      }
    }
  }
  return chain.size();
}

Expected<ReadOutcome> RedisRecords::read_from(RedisConnection& connection, const RecordName& name,
                                              std::span<std::byte> record) const {
  const std::string key = key_of(name);
  // One byte more than a record has, so that a longer one is noticed and not loaded.
  const std::string last = std::to_string(record.size());
  auto reply = connection.ask_one({"GETRANGE", key, "0", last});
  if (!reply) {
    return fail(std::move(reply.error()));
  }
  if (reply->type != RedisReply::Type::kText || reply->text.empty()) {
    return ReadOutcome::kAbsent;
  }
  if (reply->text.size() != record.size()) {
    return ReadOutcome::kWrongLength;
  }
  std::memcpy(record.data(), reply->text.data(), record.size());
  return ReadOutcome::kRead;
}

WriteReport RedisRecords::write(std::span<const RecordWrite> records) {
  WriteReport report;
  for (const RecordWrite& write : records) {
    const std::string key = key_of(write.use.name);
    Expected<RedisReply> reply;
    if (!write.replaces) {
      reply = stores_.ask_one({"EXISTS", key});
      if (reply && reply->is_integer(1)) {
        report.stored.push_back(write.use.name);
        continue;
      }
    }
    if (reply) {
      reply = stores_.ask_one({"SET", key, text_of(write.record)});
    }
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
  static_cast<void>(loads_.ask_one({"DEL", key}));
}

}  // namespace karez
