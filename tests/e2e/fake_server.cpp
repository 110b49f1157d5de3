// The server without a model: real HTTP in front of the fake engine, for tests that need no text.
//
// fake_server [--key KEY]... [--port N] [--max-waiting N] [--shutdown-seconds N] [--idle-ms N]
// [--ssl KEY CERT] [--step-us N] [--kv-role ROLE]. Prints its URL; ends at SIGTERM as karez serve
// does.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "server/server.h"
#include "support/server/fake_codec.h"
#include "support/server/fake_engine.h"

int main(int argc, char** argv) {
  karez::ServerOptions options;
  karez::FakeEngineOptions engine_options;
  options.http.port = 0;
  int shutdown_seconds = 1;
  karez::KvRole role = karez::KvRole::kNone;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i];
    const char* value = argv[i + 1];
    if (flag == "--key") {
      options.api.access.api_keys.emplace_back(value);
    } else if (flag == "--cors") {
      options.api.access.cors_origins.emplace_back(value);
    } else if (flag == "--port") {
      options.http.port = std::atoi(value);
    } else if (flag == "--max-waiting") {
      engine_options.max_waiting = std::atoi(value);
    } else if (flag == "--max-running") {
      engine_options.max_running = std::atoi(value);
    } else if (flag == "--step-us") {
      engine_options.step = std::chrono::microseconds(std::atoi(value));
    } else if (flag == "--prefill-per-step") {
      engine_options.prefill_tokens_per_step = std::atoi(value);
    } else if (flag == "--shutdown-seconds") {
      shutdown_seconds = std::atoi(value);
    } else if (flag == "--idle-ms") {
      options.http.idle_timeout = std::chrono::milliseconds(std::atoi(value));
    } else if (flag == "--header-ms") {
      options.http.header_timeout = std::chrono::milliseconds(std::atoi(value));
    } else if (flag == "--body-ms") {
      options.http.body_timeout = std::chrono::milliseconds(std::atoi(value));
    } else if (flag == "--kv-role") {
      role = karez::parse_kv_role(value).value_or(karez::KvRole::kNone);
    } else if (flag == "--ssl-key") {
      options.http.ssl_key_file = value;
    } else if (flag == "--ssl-cert") {
      options.http.ssl_cert_file = value;
    } else {
      std::fprintf(stderr, "fake_server: unknown flag %s\n", argv[i]);
      return 2;
    }
  }
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);

  const karez::FakeCodec codec;
  karez::FakeEngine engine(engine_options);
  auto server = karez::Server::start(options);
  if (!server) {
    std::fprintf(stderr, "fake_server: %s\n", server.error().to_string().c_str());
    return 2;
  }
  karez::ServerBackend backend;
  backend.engine = &engine;
  backend.codec = &codec;
  backend.model = {.name = "fake",
                   .context_tokens = 100'000,
                   .block_tokens = 16,
                   .max_num_seqs = engine_options.max_running,
                   .created_unix_seconds = 0,
                   .kv_role = role};
  (*server)->set_backend(backend);
  std::printf("%s\n", (*server)->url().c_str());
  std::fflush(stdout);
  int received = 0;
  sigwait(&signals, &received);
  (*server)->shut_down(std::chrono::seconds(shutdown_seconds));
  return 0;
}
