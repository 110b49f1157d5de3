#include "route/node_table.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace karez {
namespace node_table_test {

using Clock = NodeTable::Clock;
using std::chrono::seconds;

constexpr auto kPrefill = NodeKind::kPrefill;
constexpr auto kDecode = NodeKind::kDecode;

std::vector<NodeUrl> urls(int count, int first_port) {
  std::vector<NodeUrl> all;
  for (int i = 0; i < count; ++i) {
    all.push_back({.host = "node", .port = first_port + i, .base_path = {}});
  }
  return all;
}

void make_healthy(NodeTable& nodes) {
  for (NodeId id = 0; id < nodes.size(); ++id) {
    nodes.check(id, "", Clock::now());
  }
}

TEST(NodeTable, ANodeIsOutUntilACheckSucceedsAndAgainAfterAFailure) {
  NodeTable nodes({}, urls(1, 1));
  const Clock::time_point start = Clock::now() + seconds(1);
  EXPECT_FALSE(nodes.least_loaded(kDecode));
  EXPECT_TRUE(nodes.check(0, "", start));
  EXPECT_FALSE(nodes.check(0, "", start)) << "no news";
  EXPECT_EQ(nodes.least_loaded(kDecode), 0U);
  EXPECT_EQ(nodes.out_for(0, start + seconds(9)), Clock::duration::zero());

  nodes.failure(0, "refused", start + seconds(10));
  EXPECT_FALSE(nodes.any_healthy(kDecode));
  EXPECT_EQ(nodes.states()[0].problem, "refused");
  EXPECT_EQ(nodes.states()[0].failures, 1);
  EXPECT_TRUE(nodes.check(0, "no answer", start + seconds(11))) << "another problem is news";
  EXPECT_FALSE(nodes.check(0, "no answer", start + seconds(12)));
  EXPECT_EQ(nodes.out_for(0, start + seconds(13)), seconds(3)) << "since the failure";
  EXPECT_TRUE(nodes.check(0, "", start + seconds(14)));
  EXPECT_TRUE(nodes.any_healthy(kDecode));
}

TEST(NodeTable, TheLeastLoadedNodeIsNextAndEqualsTakeTurns) {
  NodeTable nodes(urls(1, 1), urls(3, 10));
  make_healthy(nodes);
  std::map<NodeId, int> chosen;
  for (int i = 0; i < 30; ++i) {
    const auto node = nodes.least_loaded(kDecode);
    ASSERT_TRUE(node);
    ++chosen[*node];
    nodes.begin_request(*node);
  }
  for (const NodeId decode : {1U, 2U, 3U}) {
    EXPECT_EQ(chosen[decode], 10);
  }
  nodes.end_request(2);
  EXPECT_EQ(nodes.least_loaded(kDecode), 2U);
  EXPECT_NE(nodes.least_loaded(kDecode, 2U), 2U);
}

TEST(NodeTable, EqualBeginningsGoToOneNodeAndManyBeginningsToAll) {
  NodeTable nodes(urls(4, 1), urls(1, 10));
  make_healthy(nodes);
  std::map<NodeId, int> chosen;
  for (std::uint64_t i = 0; i < 400; ++i) {
    const std::uint64_t hash = hash_text("prompt " + std::to_string(i));
    const auto node = nodes.by_prefix(kPrefill, hash);
    EXPECT_EQ(nodes.by_prefix(kPrefill, hash), node);
    ++chosen[*node];
  }
  ASSERT_EQ(chosen.size(), 4U);
  for (const auto& [node, count] : chosen) {
    EXPECT_GT(count, 60) << node;
  }
}

TEST(NodeTable, TheLossOfANodeMovesOnlyItsOwnBeginnings) {
  NodeTable nodes(urls(4, 1), urls(1, 10));
  make_healthy(nodes);
  std::map<std::uint64_t, NodeId> before;
  for (std::uint64_t hash = 1; hash <= 100; ++hash) {
    before[hash] = *nodes.by_prefix(kPrefill, hash);
  }
  nodes.failure(2, "lost", Clock::now());
  for (const auto& [hash, node] : before) {
    const NodeId now = *nodes.by_prefix(kPrefill, hash);
    EXPECT_NE(now, 2U);
    if (node != 2) {
      EXPECT_EQ(now, node);
    }
  }
}

TEST(NodeTable, ABusyNodeDoesNotGetEveryPromptOfItsBeginning) {
  NodeTable nodes(urls(3, 1), urls(1, 10));
  make_healthy(nodes);
  const NodeId favourite = *nodes.by_prefix(kPrefill, 7);
  std::map<NodeId, int> chosen;
  for (int i = 0; i < 30; ++i) {
    const NodeId node = *nodes.by_prefix(kPrefill, 7);
    ++chosen[node];
    nodes.begin_request(node);
  }
  EXPECT_EQ(chosen.size(), 2U) << "the first choice and the second one";
  EXPECT_GE(chosen[favourite], 15);
  EXPECT_LE(chosen[favourite], 21) << "about twice the mean of three";
  EXPECT_EQ(nodes.spills(), 30 - chosen[favourite]);
}

TEST(NodeTable, AnyNodeIsADecodeNodeIfThereIsAHealthyOne) {
  NodeTable nodes(urls(1, 1), urls(2, 10));
  EXPECT_FALSE(nodes.any());
  make_healthy(nodes);
  EXPECT_EQ(nodes.any(), 1U);
  EXPECT_EQ(nodes.any(1U), 2U);
  nodes.failure(1, "x", Clock::now());
  nodes.failure(2, "x", Clock::now());
  EXPECT_EQ(nodes.any(), 0U);
}

}  // namespace node_table_test
}  // namespace karez
