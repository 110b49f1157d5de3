#include "route/node_url.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace karez {
namespace node_url_test {

TEST(NodeUrl, IsReadAndWrittenInOneWay) {
  struct Case {
    const char* text;
    const char* written;
    const char* authority;
  };
  for (const Case& good : {
           Case{"http://127.0.0.1:8081", "http://127.0.0.1:8081", "127.0.0.1:8081"},
           {"HTTP://Node-1.example.org:65535/", "http://node-1.example.org:65535",
            "node-1.example.org:65535"},
           {"http://node", "http://node:80", "node:80"},
           {"http://[::1]:9/a/b//", "http://[::1]:9/a/b", "[::1]:9"},
           {"http://[FE80::1]", "http://[fe80::1]:80", "[fe80::1]:80"},
       }) {
    const auto url = parse_node_url(good.text);
    ASSERT_TRUE(url) << url.error().message();
    EXPECT_EQ(url->text(), good.written);
    EXPECT_EQ(url->authority(), good.authority);
    EXPECT_EQ(*parse_node_url(url->text()), *url);
  }
}

TEST(NodeUrl, WhatIsNoneIsRefusedWithTheReason) {
  struct Case {
    const char* text;
    const char* says;
  };
  for (const Case& bad : {
           Case{"", "does not begin with http://"},
           {"127.0.0.1:80", "does not begin with http://"},
           {"https://node:1", "is https"},
           {"http://", "no host name"},
           {"http://:80", "no host name"},
           {"http://node:", "has the port ''"},
           {"http://node:0", "has the port '0'"},
           {"http://node:65536", "has the port '65536'"},
           {"http://node:1x", "has the port '1x'"},
           {"http://user@node:1", "no host name"},
           {"http://no de:1", "no host name"},
           {"http://::1", "no host name"},
           {"http://[::1", "has no ]"},
           {"http://[node]:1", "has no IPv6 address"},
           {"http://[10.0.0.1]:1", "has no IPv6 address"},
           {"http://[::1::2]:1", "has no IPv6 address"},
           {"http://[::1]x:1", "more than a port"},
           {"http://node:1:2", "no host name"},
           {"http://node:1/a b", "has a path"},
           {"http://node:1/a?b", "has a path"},
           {"http://node:1/a\r\nX: y", "has a path"},
       }) {
    const auto url = parse_node_url(bad.text);
    ASSERT_FALSE(url) << bad.text;
    EXPECT_THAT(url.error().message(), testing::HasSubstr(bad.says));
  }
  EXPECT_FALSE(parse_node_url("http://" + std::string(254, 'a')));
}

}  // namespace node_url_test
}  // namespace karez
