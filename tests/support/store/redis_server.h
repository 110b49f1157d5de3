// Debian's redis-server on a free port of the loopback address, with a password, for one test; if
// asked for, with TLS on another port.
//
// Thread: one. Owns: the process.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "kv/store/redis_address.h"
#include "kv/store/redis_connection.h"
#include "support/store/test_certificates.h"

namespace karez::test {

class RedisServer {
 public:
  // options: more arguments, such as {"--maxmemory", "2mb"}.
  explicit RedisServer(const std::vector<std::string>& options = {}) : port_(free_port()) {
    start(options);
  }
  // Clients at the port with TLS need a certificate too.
  explicit RedisServer(const TestCertificates& certificates,
                       const std::vector<std::string>& options = {})
      : port_(free_port()), tls_port_(free_port()) {
    std::vector<std::string> all = {"--tls-port",         std::to_string(tls_port_),
                                    "--tls-cert-file",    certificates.file("server"),
                                    "--tls-key-file",     certificates.file("key"),
                                    "--tls-ca-cert-file", certificates.file("ca")};
    all.insert(all.end(), options.begin(), options.end());
    start(all);
  }
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;
  ~RedisServer() { stop(); }

  RedisAddress address() const { return {"127.0.0.1", port_, kPassword, 1, "", false}; }
  RedisAddress tls_address() const { return {"127.0.0.1", tls_port_, kPassword, 1, "", true}; }
  void stop() {
    if (process_ > 0) {
      kill(process_, SIGKILL);
      waitpid(process_, nullptr, 0);
      process_ = -1;
    }
  }
  void freeze() const { kill(process_, SIGSTOP); }
  void thaw() const { kill(process_, SIGCONT); }

  static constexpr const char* kPassword = "p w@:/%";

 private:
  static int free_port() {
    const int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    KAREZ_CHECK(bind(probe, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                    getsockname(probe, reinterpret_cast<sockaddr*>(&address), &size) == 0,
                "a loopback port is free");
    close(probe);
    return ntohs(address.sin_port);
  }
  void start(const std::vector<std::string>& options) {
    std::vector<std::string> words = {"redis-server",
                                      "--port",
                                      std::to_string(port_),
                                      "--bind",
                                      "127.0.0.1",
                                      "--save",
                                      "",
                                      "--appendonly",
                                      "no",
                                      "--dir",
                                      "/tmp",
                                      "--requirepass",
                                      kPassword,
                                      "--logfile",
                                      "/dev/null"};
    words.insert(words.end(), options.begin(), options.end());
    std::vector<char*> arguments;
    for (std::string& word : words) {
      arguments.push_back(word.data());
    }
    arguments.push_back(nullptr);
    KAREZ_CHECK(
        posix_spawnp(&process_, "redis-server", nullptr, nullptr, arguments.data(), environ) == 0,
        "redis-server is installed (scripts/setup.sh --tests)");
    RedisConnection probe({.address = address()});
    while (!probe.ask_one({"PING"})) {
      KAREZ_CHECK(waitpid(process_, nullptr, WNOHANG) == 0, "redis-server runs");
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  int port_;
  int tls_port_ = 0;
  pid_t process_ = -1;
};

}  // namespace karez::test
