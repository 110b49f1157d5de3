// PoolSocket: a TCP connection, with TLS or without, for a thread that may wait until a deadline.
//
// Bytes only; what they mean is RedisConnection's. With TLS the other side has shown a certificate
// that is trusted, valid now, and made out to the host that was asked for. Looking a name up has no
// deadline but the system's.
// Errors: kDeadlineExceeded, and kUnavailable for the rest, without the host: "no connection:
// Connection refused". After one it is of no use any more. No call raises SIGPIPE.
// Thread: one. Owns: the socket.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "kv/store/tls_client.h"

struct ssl_st;

namespace karez {

class PoolSocket {
 public:
  // Connected, and through with the handshake. tls: null: none.
  static Expected<std::unique_ptr<PoolSocket>> connect(const std::string& host, int port,
                                                       const TlsFiles* tls,
                                                       Clock::TimePoint deadline);
  ~PoolSocket();
  PoolSocket(const PoolSocket&) = delete;
  PoolSocket& operator=(const PoolSocket&) = delete;

  // All of them.
  Expected<void> send(std::string_view bytes, Clock::TimePoint deadline);
  // As many as there are, at least one.
  Expected<std::size_t> receive(std::span<char> memory, Clock::TimePoint deadline);
  // Whether it works and nothing has come that is not received yet. Does not wait.
  bool is_quiet();

 private:
  struct FreeTls {
    void operator()(ssl_st* tls) const;
  };
  // What a call that does not wait has done, or what poll() must wait for before it can.
  struct Step {
    std::size_t bytes = 0;
    short wait_for = 0;
  };

  explicit PoolSocket(int socket) : socket_(socket) {}
  static Expected<int> connect_tcp(const std::string& host, int port, Clock::TimePoint deadline);
  Expected<void> begin_tls(const std::string& host, const TlsFiles& files,
                           Clock::TimePoint deadline);
  Expected<Step> try_send(std::string_view bytes);
  Expected<Step> try_receive(std::span<char> memory);
  Expected<Step> after_tls_call(int result);

  int socket_;
  TlsContext context_;
  std::unique_ptr<ssl_st, FreeTls> tls_;  // null: none
};

}  // namespace karez
