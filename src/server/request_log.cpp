#include "server/request_log.h"

#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>

namespace karez {

Expected<std::unique_ptr<RequestLog>> RequestLog::open(const std::string& path) {
  if (path == "-") {
    return std::unique_ptr<RequestLog>(new RequestLog(stdout));
  }
  std::FILE* file = std::fopen(path.c_str(), "ae");
  if (file == nullptr) {
    return fail(StatusCode::kIoError, fmt::format("--log-jsonl {}: {}", path, strerror(errno)));
  }
  return std::unique_ptr<RequestLog>(new RequestLog(file));
}

RequestLog::~RequestLog() {
  if (file_ != stdout) {
    std::fclose(file_);
  }
}

void RequestLog::write(const RequestRecord& record) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const nlohmann::ordered_json line = {
      {"time_unix_ms", std::chrono::duration_cast<std::chrono::milliseconds>(now).count()},
      {"id", record.id},
      {"route", record.route},
      {"status", record.http_status},
      {"finish_reason", record.finish_reason},
      {"prompt_tokens", record.prompt_tokens},
      {"cached_tokens", record.cached_tokens},
      {"generated_tokens", record.generated_tokens},
      {"queue_ms", record.queue_seconds * 1000},
      {"first_token_ms", record.first_token_seconds * 1000},
      {"total_ms", record.total_seconds * 1000}};
  const std::string text = line.dump() + "\n";
  const std::lock_guard lock(mutex_);
  std::fwrite(text.data(), 1, text.size(), file_);
  std::fflush(file_);
}

}  // namespace karez
