// The flags of listening, keys and connections, shared by the commands that serve HTTP. Names are
// llama-server's where it has them.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/api_routes.h"
#include "server/http_server.h"

namespace CLI {
class App;
}

namespace karez {

// As typed.
struct HttpFlags {
  std::string host = "127.0.0.1";
  std::int64_t port = 8080;
  std::int64_t io_threads = 2;
  std::vector<std::string> api_keys;
  std::string api_key_file;
  std::vector<std::string> cors_origins;
  std::string ssl_key_file;
  std::string ssl_cert_file;
  std::string max_body_bytes = "8MiB";
  std::int64_t timeout_seconds = 60;
  std::int64_t idle_timeout_seconds = 120;
  std::int64_t shutdown_timeout_seconds = 10;
};

struct CheckedHttp {
  HttpOptions http;
  AccessRules access;
  std::chrono::seconds shutdown_timeout{0};
};

void add_http_flags(CLI::App& command, HttpFlags& flags);

// Fails: kInvalidArgument naming the flag, its value and what is allowed; kNotFound, kIoError for
// --api-key-file.
Expected<CheckedHttp> check_http_flags(const HttpFlags& flags);

}  // namespace karez
