// Where a Redis server is and who we are there, as a URL says it.
//
// Not the files of TLS (tls_client.h). Its password is in no message of ours.
// Thread: values, and functions without state.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace karez {

struct RedisAddress {
  std::string host;  // a name or an address
  int port = 6379;
  std::string password;  // empty: none
  int database = 0;
  std::string user;  // empty: the server's default user
  bool use_tls = false;

  // Without user and password: "rediss://pool:6379/0".
  std::string to_string() const;
  // "pool:6379", "[::1]:6379"
  std::string host_and_port() const;
};

// redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE], rediss:// for TLS; %XX in user and password; an
// IPv6 address in brackets.
// Fails: kInvalidArgument with what is wrong, without the password.
Expected<RedisAddress> parse_redis_address(std::string_view url);

}  // namespace karez
