#include "base/ip_address.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <array>
#include <cstring>
#include <string_view>

namespace karez {
namespace ip_address_test {

TEST(IpAddress, IsReadWithWhatItIs) {
  struct Case {
    const char* text;
    bool is_v4;
    bool is_loopback;
    bool is_any;
  };
  for (const Case& one : {
           Case{"127.0.0.1", true, true, false},
           {"127.255.255.255", true, true, false},
           {"126.255.255.255", true, false, false},
           {"128.0.0.1", true, false, false},
           {"0.0.0.0", true, false, true},
           {"0.0.0.1", true, false, false},
           {"10.1.2.3", true, false, false},
           {"::1", false, true, false},
           {"::", false, false, true},
           {"::2", false, false, false},
           {"1::1", false, false, false},
           {"127::", false, false, false},
           {"FD00::7", false, false, false},
           {"::ffff:127.0.0.1", true, true, false},
           {"::ffff:7f00:1", true, true, false},
           {"::ffff:0.0.0.0", true, false, true},
           {"::127.0.0.1", false, false, false},
       }) {
    const auto address = parse_ip_address(one.text);
    ASSERT_TRUE(address) << one.text;
    EXPECT_EQ(address->is_v4(), one.is_v4) << one.text;
    EXPECT_EQ(address->is_loopback(), one.is_loopback) << one.text;
    EXPECT_EQ(address->is_any(), one.is_any) << one.text;
  }
  EXPECT_EQ(parse_ip_address("10.0.0.1"), parse_ip_address("::ffff:10.0.0.1"));
  EXPECT_EQ(parse_ip_address("fd00:0:0::1"), parse_ip_address("FD00::1"));
  EXPECT_NE(parse_ip_address("10.0.0.1"), parse_ip_address("10.0.0.2"));
}

TEST(IpAddress, NothingElseIsOne) {
  using std::string_view_literals::operator""sv;
  for (const std::string_view text :
       {""sv, "localhost"sv, "127.1"sv, "2130706433"sv, "10.0.0"sv, "10.0.0.256"sv, "10.0.0.1 "sv,
        "10.0.0.0/8"sv, "0x7f.0.0.1"sv, "[::1]"sv, "::1%lo"sv, "::1::"sv, ":::"sv, "127.0.0.1\0"sv,
        "10.0.0.1:80"sv}) {
    EXPECT_FALSE(parse_ip_address(text)) << text;
  }
}

TEST(IpAddress, BecomesWhatTheSystemTakes) {
  for (const char* text : {"10.1.2.3", "::ffff:10.1.2.3"}) {
    const SocketAddress address = parse_ip_address(text)->to_sockaddr(4711);
    sockaddr_in v4 = {};
    ASSERT_EQ(address.size, sizeof v4);
    std::memcpy(&v4, address.get(), sizeof v4);
    EXPECT_EQ(v4.sin_family, AF_INET);
    EXPECT_EQ(ntohs(v4.sin_port), 4711);
    EXPECT_EQ(ntohl(v4.sin_addr.s_addr), 0x0A010203U);
  }
  const SocketAddress address = parse_ip_address("fd00::1")->to_sockaddr(65535);
  sockaddr_in6 v6 = {};
  ASSERT_EQ(address.size, sizeof v6);
  std::memcpy(&v6, address.get(), sizeof v6);
  EXPECT_EQ(v6.sin6_family, AF_INET6);
  EXPECT_EQ(ntohs(v6.sin6_port), 65535);
  std::array<char, INET6_ADDRSTRLEN> text = {};
  EXPECT_STREQ(inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size()), "fd00::1");
}

TEST(IpAddress, NamesLoopback) {
  for (const char* host : {"localhost", "LocalHost", "127.0.0.1", "127.3.2.1", "::1",
                           "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(names_loopback(host)) << host;
  }
  for (const char* host :
       {"", "localhos", "localhost.", "127.evil.example", "127.1", "10.0.0.1", "::2", "[::1]"}) {
    EXPECT_FALSE(names_loopback(host)) << host;
  }
}

}  // namespace ip_address_test
}  // namespace karez
