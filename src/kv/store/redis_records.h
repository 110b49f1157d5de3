// Records in a Redis server, which several nodes share.
//
//   karez:1:IIIIIIIIIIIIIIII:N...N    I: identity, N: name, in hexadecimal digits
//
// The server decides what is kept (its maxmemory-policy). It may vanish, forget and answer anything
// at any time.
// Thread: as RecordBackend: a connection for each of the two. Owns: both.
#pragma once

#include <chrono>
#include <span>
#include <string>

#include "kv/store/block_record.h"
#include "kv/store/record_backend.h"
#include "kv/store/redis_address.h"
#include "kv/store/redis_connection.h"
#include "kv/store/tls_client.h"

namespace karez {

struct RedisRecordsOptions {
  RedisAddress address;
  TlsFiles tls{};  // with address.use_tls
  RecordShape shape;
  std::chrono::milliseconds connect_limit{2000};  // see RedisConnectionOptions
  std::chrono::milliseconds answer_limit{5000};
};

class RedisRecords final : public RecordBackend {
 public:
  // Does not connect yet.
  explicit RedisRecords(const RedisRecordsOptions& options);

  // Asks something, so that a wrong address, password or database shows before the first request.
  Expected<void> prepare() override;
  Expected<std::size_t> count_present(std::span<const RecordName> chain) override;
  Expected<ReadOutcome> read(const RecordName& name, std::span<std::byte> record) override {
    return read_from(loads_, name, record);
  }
  Expected<ReadOutcome> reread(const RecordName& name, std::span<std::byte> record) override {
    return read_from(stores_, name, record);
  }
  WriteReport write(std::span<const RecordWrite> records) override;
  void remove(const RecordName& name) override;
  // The server counts uses itself.
  void touch(std::span<const RecordUse>) override {}
  BackendUsage usage() const override { return {}; }
  std::string describe() const override;

  std::string key_of(const RecordName& name) const;

 private:
  Expected<ReadOutcome> read_from(RedisConnection& connection, const RecordName& name,
                                  std::span<std::byte> record) const;

  const RedisAddress address_;
  const RecordShape shape_;
  RedisConnection loads_;
  RedisConnection stores_;
};

}  // namespace karez
