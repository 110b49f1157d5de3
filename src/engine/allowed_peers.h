// AllowedPeers: which addresses a consumer connects to. A request says where its KV is, and whoever
// may send requests must not choose what this machine connects to.
//
// Addresses only: a name could mean another machine tomorrow. Thread: a value.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/ip_address.h"
#include "base/status.h"

namespace karez {

class AllowedPeers {
 public:
  // This machine: 127.0.0.0/8 and ::1.
  AllowedPeers();
  // "any", or with commas: ADDRESS[/BITS][:PORT], an IPv6 address with a port in brackets, as in
  // "10.0.0.0/24:5600,[fd00::1]:5600"; without a port: every port. Nothing else is allowed then.
  // Fails: kInvalidArgument with the entry that is wrong.
  static Expected<AllowedPeers> parse(std::string_view list);

  bool allow(const std::string& host, int port) const;
  // Whether no list was given.
  bool is_default() const { return is_default_; }
  // Whether others than those of this machine are among them.
  bool go_beyond_loopback() const;

 private:
  struct Rule {
    IpAddress network;
    int bits = 0;  // of it that count, from the first
    int port = 0;  // 0: all
  };

  static std::vector<Rule> loopback();
  static Expected<Rule> parse_rule(std::string_view entry);

  std::vector<Rule> rules_;
  bool is_default_ = true;
};

}  // namespace karez
