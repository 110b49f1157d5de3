// One JSON line per request, for --log-jsonl, refused ones included. Holds no text of prompts or
// answers, no keys, and no path that a client made up.
//
// Thread: write() from any thread; lines are never mixed.
#pragma once

#include <cstdio>
#include <memory>
#include <mutex>
#include <string>

#include "base/status.h"

namespace karez {

struct RequestRecord {
  std::string id;
  std::string route;  // empty: none that exists
  int http_status = 0;
  std::string
      finish_reason;  // "stop", "length", "abort", "error", "rejected"; empty: no generation
  int prompt_tokens = 0;
  int cached_tokens = 0;
  int generated_tokens = 0;
  double queue_seconds = 0;
  double first_token_seconds = 0;
  double total_seconds = 0;
};

class RequestLog {
 public:
  // Appends to the file; "-" is standard output. Fails: kIoError.
  static Expected<std::unique_ptr<RequestLog>> open(const std::string& path);
  ~RequestLog();

  void write(const RequestRecord& record);

 private:
  explicit RequestLog(std::FILE* file) : file_(file) {}
  std::FILE* file_;
  std::mutex mutex_;
};

}  // namespace karez
