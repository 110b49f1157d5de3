#include "cli/http_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "cli/flag_checks.h"
#include "cli/text_file.h"

namespace karez {
namespace {

constexpr std::size_t kMaxKeyFileBytes = 1 << 20;

// One key a line; empty lines do not count.
Expected<std::vector<std::string>> read_keys(const HttpFlags& flags) {
  std::vector<std::string> keys = flags.api_keys;
  if (!flags.api_key_file.empty()) {
    auto text = read_text_file(flags.api_key_file, kMaxKeyFileBytes);
    if (!text) {
      return fail(text.error().code(), "--api-key-file: " + text.error().message());
    }
    std::string_view rest = *text;
    while (!rest.empty()) {
      const std::size_t end = rest.find('\n');
      std::string_view line = rest.substr(0, end);
      if (line.ends_with('\r')) {
        line.remove_suffix(1);
      }
      if (!line.empty()) {
        keys.emplace_back(line);
      }
      rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    }
    if (keys.empty()) {
      return fail(StatusCode::kInvalidArgument,
                  fmt::format("--api-key-file {} holds no key", flags.api_key_file));
    }
  }
  for (const std::string& key : keys) {
    if (key.empty()) {
      return fail(StatusCode::kInvalidArgument, "--api-key is empty, which would let everyone in");
    }
  }
  return keys;
}

}  // namespace

void add_http_flags(CLI::App& command, HttpFlags& flags) {
  const std::string http = "HTTP";
  const auto text = [&](const std::string& name, std::string& value, const std::string& help,
                        const std::string& type, const std::string& group) {
    return command.add_option(name, value, help)->type_name(type)->group(group);
  };
  const auto number = [&](const std::string& name, std::int64_t& value, const std::string& help,
                          const std::string& group) {
    return command.add_option(name, value, help)
        ->capture_default_str()
        ->type_name("N")
        ->group(group);
  };
  text("--host", flags.host, "Address to listen on", "ADDRESS", http)->capture_default_str();
  number("--port", flags.port, "Port; 0: any free one", http);
  command
      .add_option("--api-key", flags.api_keys,
                  "Key that clients must send; may be given repeatedly")
      ->type_name("KEY")
      ->allow_extra_args(false)
      ->group(http);
  text("--api-key-file", flags.api_key_file, "Keys from a file, one a line", "FILE", http);
  command
      .add_option("--cors-origins", flags.cors_origins,
                  "Web origins that may use the server from a browser; * for all")
      ->type_name("ORIGIN")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(http);
  text("--ssl-key-file", flags.ssl_key_file, "TLS: private key (PEM)", "FILE", http);
  text("--ssl-cert-file", flags.ssl_cert_file, "TLS: certificate chain (PEM)", "FILE", http);
  text("--max-body-bytes", flags.max_body_bytes, "Largest request body", "BYTES", http)
      ->capture_default_str();
  number("--threads-http", flags.io_threads, "Threads for connections", http);
  number("--timeout", flags.timeout_seconds,
         "Seconds for a client to send its request's body, or to take what is written to it", http);
  number("--idle-timeout", flags.idle_timeout_seconds,
         "Seconds until a connection without a request is closed", http);
  number("--shutdown-timeout", flags.shutdown_timeout_seconds,
         "Seconds that running answers have to end after SIGTERM", http);
}

Expected<CheckedHttp> check_http_flags(const HttpFlags& flags) {
  constexpr std::int64_t kMaxSeconds = 86'400;
  CheckedHttp checked;
  RangeCheck in_range;
  HttpOptions& http = checked.http;
  http.host = flags.host;
  http.port = in_range("--port", flags.port, 0, 65'535);
  http.io_threads = in_range("--threads-http", flags.io_threads, 1, 64);
  http.body_timeout =
      std::chrono::seconds(in_range("--timeout", flags.timeout_seconds, 1, kMaxSeconds));
  http.write_timeout = http.body_timeout;
  http.idle_timeout =
      std::chrono::seconds(in_range("--idle-timeout", flags.idle_timeout_seconds, 1, kMaxSeconds));
  checked.shutdown_timeout = std::chrono::seconds(
      in_range("--shutdown-timeout", flags.shutdown_timeout_seconds, 0, kMaxSeconds));
  if (!in_range.result()) {
    return fail(in_range.result().error());
  }
  const auto body = parse_bytes(flags.max_body_bytes);
  if (!body || *body < 1024 || *body > kGiB) {
    return fail(
        StatusCode::kInvalidArgument,
        fmt::format("--max-body-bytes is {}, allowed are 1KiB to 1GiB", flags.max_body_bytes));
  }
  http.max_body_bytes = static_cast<std::size_t>(*body);
  auto keys = read_keys(flags);
  if (!keys) {
    return fail(std::move(keys.error()));
  }
  http.ssl_key_file = flags.ssl_key_file;
  http.ssl_cert_file = flags.ssl_cert_file;
  checked.access.api_keys = std::move(*keys);
  checked.access.cors_origins = flags.cors_origins;
  return checked;
}

}  // namespace karez
