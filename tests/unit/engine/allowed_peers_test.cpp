#include "engine/allowed_peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace karez {
namespace allowed_peers_test {

using testing::HasSubstr;

TEST(AllowedPeers, AreThisMachineUnlessAListIsGiven) {
  const AllowedPeers peers;
  EXPECT_TRUE(peers.is_default());
  for (const char* host : {"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(peers.allow(host, 1)) << host;
  }
  // 0.0.0.0 reaches this machine too, by a way that nobody needs.
  for (const char* host :
       {"128.0.0.1", "126.255.255.255", "0.0.0.0", "::", "::2", "10.0.0.1", "169.254.169.254",
        "localhost", "", "127.0.0.1 ", "127.1", "2130706433", "::ffff:10.0.0.1", "fe80::1%lo"}) {
    EXPECT_FALSE(peers.allow(host, 1)) << host;
  }
}

TEST(AllowedPeers, AListHasAddressesAndNetworksWithAndWithoutPorts) {
  const auto peers = AllowedPeers::parse(
      "10.0.0.1,10.1.0.0/20:5600,fd00::/9,[fe80::1]:7,[fe80::2],192.168.0.9:80");
  ASSERT_TRUE(peers);
  EXPECT_FALSE(peers->is_default());
  struct Case {
    const char* host;
    int port;
    bool is_allowed;
  };
  for (const Case& one :
       {Case{"10.0.0.1", 1, true}, Case{"10.0.0.2", 1, false}, Case{"::ffff:10.0.0.1", 1, true},
        Case{"10.1.15.255", 5600, true}, Case{"10.1.15.255", 5601, false},
        Case{"10.1.16.0", 5600, false}, Case{"fd7f::1", 9, true}, Case{"fd80::1", 9, false},
        Case{"fe80::1", 7, true}, Case{"fe80::1", 8, false}, Case{"fe80::2", 8, true},
        Case{"192.168.0.9", 80, true}, Case{"127.0.0.1", 80, false}}) {
    EXPECT_EQ(peers->allow(one.host, one.port), one.is_allowed) << one.host << " " << one.port;
  }
  EXPECT_TRUE(AllowedPeers::parse("any")->allow("8.8.8.8", 1));
  EXPECT_TRUE(AllowedPeers::parse("any")->allow("fd00::1", 1));
  EXPECT_TRUE(AllowedPeers::parse("0.0.0.0/0")->allow("8.8.8.8", 1));
  EXPECT_FALSE(AllowedPeers::parse("0.0.0.0/0")->allow("fd00::1", 1));
  EXPECT_TRUE(AllowedPeers::parse("localhost:5600")->allow("127.0.0.1", 5600));
}

TEST(AllowedPeers, KnowWhetherOthersThanThisMachineAreAmongThem) {
  EXPECT_FALSE(AllowedPeers().go_beyond_loopback());
  EXPECT_FALSE(AllowedPeers::parse("localhost,127.1.0.0/16:80,[::1]:1,::ffff:127.0.0.1")
                   ->go_beyond_loopback());
  for (const char* list : {"any", "127.0.0.0/7", "::1/127", "127.0.0.1,10.0.0.1", "fd00::1"}) {
    EXPECT_TRUE(AllowedPeers::parse(list)->go_beyond_loopback()) << list;
  }
}

TEST(AllowedPeers, AnEntryThatIsNoneIsNamed) {
  for (const char* entry :
       {"", "pool", "10.0.0", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0.1:x",
        "10.0.0.1/33", "10.0.0.1/", "10.0.0.1/-1", "fd00::/129", "[fd00::1", "[fd00::1]5",
        "[fd00::1]:", "10.0.0.1 ", "any,10.0.0.1", "10.0.0.1,", "1e1.0.0.1", "10.0.0.1/8x"}) {
    const auto peers = AllowedPeers::parse(entry);
    ASSERT_FALSE(peers) << entry;
    EXPECT_EQ(peers.error().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(peers.error().message(), HasSubstr("10.0.0.0/24:5600"));
  }
  EXPECT_THAT(AllowedPeers::parse("10.0.0.1,pool").error().message(), HasSubstr("'pool'"));
}

}  // namespace allowed_peers_test
}  // namespace karez
