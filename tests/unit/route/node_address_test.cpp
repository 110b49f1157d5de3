#include "route/node_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <vector>

namespace karez {
namespace node_address_test {

using testing::ElementsAre;
using testing::HasSubstr;

NodeEndpoints endpoints(const char* address) {
  return {{boost::asio::ip::make_address(address), 9}};
}

NodeUrl url_of(const char* host) { return {.host = host, .port = 9, .base_path = {}}; }

void look_up_and_wait(NodeAddress& address) {
  std::promise<void> ended;
  ASSERT_TRUE(address.look_up([&] { ended.set_value(); }));
  ended.get_future().wait();
}

TEST(NodeAddress, AnIpAddressIsNotLookedUp) {
  for (const char* host : {"127.0.0.1", "::1", "fd00::7"}) {
    std::atomic<bool> was_asked = false;
    NodeAddress address(url_of(host), [&](const NodeUrl&) {
      was_asked = true;
      return NodeEndpoints();
    });
    EXPECT_EQ(address.endpoints().value(), endpoints(host));
    EXPECT_FALSE(address.look_up([] { FAIL() << "nothing ends"; }));
    EXPECT_FALSE(was_asked);
  }
}

TEST(NodeAddress, WhatIsKnownStaysWhereNobodyAnswersAndGoesWithTheName) {
  std::vector<Expected<NodeEndpoints>> answers = {
      fail(StatusCode::kUnavailable, "no server"), endpoints("10.0.0.1"),
      fail(StatusCode::kUnavailable, "no server"), endpoints("10.0.0.2"),
      fail(StatusCode::kNotFound, "no such name")};
  std::atomic<std::size_t> next = 0;
  NodeAddress address(url_of("node"), [&](const NodeUrl& url) {
    EXPECT_EQ(url.host, "node");
    return answers[next++];
  });
  EXPECT_THAT(address.endpoints().error().message(), HasSubstr("not looked up yet"));
  look_up_and_wait(address);
  EXPECT_EQ(address.endpoints().error().message(), "no server");
  for (const char* known : {"10.0.0.1", "10.0.0.1", "10.0.0.2"}) {
    look_up_and_wait(address);
    EXPECT_EQ(address.endpoints().value(), endpoints(known));
  }
  look_up_and_wait(address);
  EXPECT_EQ(address.endpoints().error().message(), "no such name");
  EXPECT_EQ(address.endpoints().error().code(), StatusCode::kUnavailable) << "to whoever connects";
}

TEST(NodeAddress, ALookUpThatHangsKeepsNobodyWaiting) {
  const auto answer = std::make_shared<std::promise<void>>();
  const auto num_asked = std::make_shared<std::atomic<int>>(0);
  const auto has_answered = std::make_shared<std::promise<void>>();
  {
    NodeAddress address(url_of("node"), [=](const NodeUrl&) {
      ++*num_asked;
      answer->get_future().wait();
      has_answered->set_value();
      return NodeEndpoints();
    });
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(address.look_up([] { FAIL() << "its owner is gone"; }));
      EXPECT_FALSE(address.endpoints());
    }
  }
  answer->set_value();
  has_answered->get_future().wait();
  EXPECT_EQ(*num_asked, 1);
}

TEST(NodeAddress, TheSystemKnowsThisMachineAndNoInvalidName) {
  const auto here = resolve_with_system(url_of("localhost"));
  ASSERT_TRUE(here) << here.error().message();
  ASSERT_FALSE(here->empty());
  for (const auto& endpoint : *here) {
    EXPECT_TRUE(endpoint.address().is_loopback());
    EXPECT_EQ(endpoint.port(), 9);
  }
  const auto nowhere = resolve_with_system(url_of("node.invalid"));
  ASSERT_FALSE(nowhere);
  EXPECT_THAT(nowhere.error().message(), HasSubstr("'node.invalid' has no address: "));
}

}  // namespace node_address_test
}  // namespace karez
