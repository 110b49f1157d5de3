#include "base/host_port.h"

#include <gtest/gtest.h>

#include <optional>
#include <string_view>

namespace karez {
namespace host_port_test {

TEST(HostPort, IsTakenApart) {
  struct Case {
    const char* text;
    const char* host;
    std::optional<std::string_view> port;
    bool was_bracketed;
  };
  for (const Case& one : {
           Case{"node:80", "node", "80", false},
           {"node", "node", std::nullopt, false},
           {"node:", "node", "", false},
           {":80", "", "80", false},
           {"", "", std::nullopt, false},
           {"10.0.0.0/8:x", "10.0.0.0/8", "x", false},
           {"fd00::1", "fd00::1", std::nullopt, false},
           {"::", "::", std::nullopt, false},
           {"[::1]:80", "::1", "80", true},
           {"[::1]", "::1", std::nullopt, true},
           {"[::1]:", "::1", "", true},
           {"[]:80", "", "80", true},
           {"[node]:8:0", "node", "8:0", true},
       }) {
    const auto parts = split_host_port(one.text);
    ASSERT_TRUE(parts) << one.text;
    EXPECT_EQ(parts->host, one.host) << one.text;
    EXPECT_EQ(parts->port, one.port) << one.text;
    EXPECT_EQ(parts->was_bracketed, one.was_bracketed) << one.text;
  }
  for (const char* text : {"[::1", "[", "[::1:80"}) {
    EXPECT_EQ(split_host_port(text).error().message(), "has no ] after its address") << text;
  }
  for (const char* text : {"[::1]80", "[::1]]:80", "[::1] :80"}) {
    EXPECT_EQ(split_host_port(text).error().message(), "has more than a port after ]") << text;
  }
}

TEST(HostPort, IsWrittenSoThatItCanBeTakenApart) {
  EXPECT_EQ(host_and_port("node", 80), "node:80");
  EXPECT_EQ(host_and_port("10.0.0.1", 65535), "10.0.0.1:65535");
  EXPECT_EQ(host_and_port("fd00::1", 1), "[fd00::1]:1");
}

TEST(HostPort, APortIsDigitsFrom1To65535) {
  EXPECT_EQ(parse_port("1"), 1);
  EXPECT_EQ(parse_port("65535"), 65535);
  EXPECT_EQ(parse_port("0080"), 80);
  for (const char* text : {"", "0", "65536", "-1", "+1", "1x", "x1", " 1", "1 ", "99999999999"}) {
    EXPECT_FALSE(parse_port(text)) << text;
  }
  EXPECT_EQ(parse_number("0", 0, 128), 0);
  EXPECT_FALSE(parse_number("-0", 0, 128));
  EXPECT_FALSE(parse_number("129", 0, 128));
}

}  // namespace host_port_test
}  // namespace karez
