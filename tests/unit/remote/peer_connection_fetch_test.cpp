// Manifests on their way: many at a time, on demand, and without their lease.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "remote/peer_connection.h"
#include "support/remote/direct_link.h"

namespace karez::test {
namespace peer_connection_fetch_test {

using std::chrono::seconds;

constexpr std::size_t kMostParts = 32;  // that are asked for and not there

std::vector<std::byte> note_of(std::uint64_t epoch) {
  std::vector<std::byte> note(2 << 20U);  // eight parts
  for (std::size_t i = 0; i < note.size(); ++i) {
    note[i] = static_cast<std::byte>(i / 4096 + i * epoch);
  }
  return note;
}

RequestKey add_export(DirectLink& link, std::uint64_t epoch = 1) {
  KvExport made;
  made.epoch = epoch;
  made.tokens.assign(20, 3);
  made.num_blocks = 2;
  made.blocks.assign(8, RemoteBlock{});
  made.note = note_of(epoch);
  return link.table.add(std::move(made), link.clock.now()).value();
}

// The fetches that have ended, by their id.
struct Ends {
  std::map<std::uint32_t, Expected<Manifest>> of;

  void look(DirectLink& link) {
    std::vector<PeerConnection::FetchEnd> ends;
    link.connection->take_fetches(ends);
    for (PeerConnection::FetchEnd& end : ends) {
      of.emplace(end.fetch.value, std::move(end.outcome));
    }
  }
};

// The leases whose parts are asked for, in that order.
std::vector<std::uint64_t> leases_asked(const DirectLink& link) {
  std::vector<std::uint64_t> leases;
  for (const std::vector<std::byte>& bytes : link.to_producer) {
    const WireFrame frame = read_frame(bytes).value();
    if (frame.type == WireType::kFetchPart) {
      leases.push_back(decode_fetch_part(frame.body)->lease);
    }
  }
  return leases;
}

TEST(PeerConnectionFetch, ManyTogetherHaveABoundedNumberOfQuestionsOpenAndAllComeWhole) {
  constexpr std::uint32_t kNumFetches = 40;
  DirectLink link;
  link.pump();
  const RequestKey key = add_export(link);
  for (std::uint32_t i = 0; i < kNumFetches; ++i) {
    link.connection->fetch(FetchId(i), key, 1, link.clock.now() + seconds(60));
  }
  Ends ends;
  std::set<std::uint64_t> served;
  std::size_t most = 0;
  do {
    const std::vector<std::uint64_t> asked = leases_asked(link);
    most = std::max(most, asked.size());
    served.insert(asked.begin(), asked.end());
    ends.look(link);
    EXPECT_TRUE(ends.of.empty() || served.size() == kNumFetches) << "one went before its turn";
  } while (link.pump_one());
  EXPECT_EQ(most, kMostParts);
  ASSERT_EQ(ends.of.size(), kNumFetches);
  for (const auto& [id, outcome] : ends.of) {
    ASSERT_TRUE(outcome.has_value()) << outcome.error().message();
    EXPECT_EQ(outcome->note, note_of(1)) << id;
    EXPECT_EQ(outcome->tokens, std::vector<TokenId>(20, 3)) << id;
    EXPECT_EQ(outcome->blocks.size(), 8U) << id;
  }
}

TEST(PeerConnectionFetch, AQuestionOfOneThatIsGoneIsOpenUntilItIsAnswered) {
  DirectLink link;
  link.pump();
  const RequestKey key = add_export(link);
  for (std::uint32_t i = 0; i < 9; ++i) {
    link.connection->fetch(FetchId(i), key, 1, link.clock.now() + seconds(60));
  }
  for (int i = 0; i < 9; ++i) {
    link.pump_one();
  }
  ASSERT_EQ(leases_asked(link).size(), kMostParts);
  for (std::uint32_t i = 0; i < 8; ++i) {
    link.connection->cancel_fetch(FetchId(i));
  }
  EXPECT_EQ(leases_asked(link).size(), kMostParts);
  link.pump();
  Ends ends;
  ends.look(link);
  ASSERT_EQ(ends.of.size(), 1U);
  ASSERT_TRUE(ends.of.at(8).has_value()) << ends.of.at(8).error().message();
  EXPECT_EQ(ends.of.at(8)->note, note_of(1));
  EXPECT_EQ(link.table.num_leases(), 1);
}

TEST(PeerConnectionFetch, ALeaseThatEndsOnTheWayIsTheErrorOfItsFetchAlone) {
  DirectLink link;
  link.pump();
  const RequestKey ending = add_export(link, 1);
  const RequestKey staying = add_export(link, 2);
  link.connection->fetch(FetchId(1), ending, 1, link.clock.now() + seconds(60));
  link.connection->fetch(FetchId(2), staying, 2, link.clock.now() + seconds(60));
  link.pump_one();
  link.pump_one();
  link.table.remove(ending);
  link.pump();
  Ends ends;
  ends.look(link);
  ASSERT_EQ(ends.of.size(), 2U);
  ASSERT_FALSE(ends.of.at(1).has_value());
  EXPECT_EQ(ends.of.at(1).error().code(), StatusCode::kNotFound);
  ASSERT_TRUE(ends.of.at(2).has_value()) << ends.of.at(2).error().message();
  EXPECT_EQ(ends.of.at(2)->note, note_of(2));
  EXPECT_TRUE(link.connection->is_ready());
}

TEST(PeerConnectionFetch, APartThatNobodyAskedForIsABreach) {
  DirectLink link;
  link.fetch(add_export(link), 1)->value();
  const std::vector<std::byte> bytes(16);
  const FetchPartMessage part{link.lease, ManifestSection::kNote, 16, 0};
  link.connection->on_frame(encode(3, PartMessage{part, bytes}), link.clock.now());
  EXPECT_TRUE(link.connection->is_broken());
}

TEST(PeerConnectionFetch, OnDemandNothingButALeaseIsHeldHoweverLong) {
  DirectLink link;
  link.pump();
  const RequestKey key = add_export(link);
  link.connection->fetch(FetchId(1), key, 1, link.clock.now() + seconds(2),
                         FetchContents::kOnDemand);
  EXPECT_FALSE(link.connection->manifest_bytes(FetchId(1)).has_value());
  link.pump();
  EXPECT_EQ(link.connection->manifest_bytes(FetchId(1)),
            20 * sizeof(TokenId) + 8 * sizeof(RemoteBlock) + note_of(1).size());
  for (int i = 0; i < 20; ++i) {
    link.let_pass(seconds(10));
    EXPECT_TRUE(leases_asked(link).empty());
    link.pump();
  }
  Ends ends;
  ends.look(link);
  EXPECT_TRUE(ends.of.empty());
  EXPECT_EQ(link.table.num_leases(), 1);

  link.connection->fetch_contents(FetchId(1), link.clock.now() + seconds(2));
  link.pump();
  ends.look(link);
  ASSERT_EQ(ends.of.size(), 1U);
  ASSERT_TRUE(ends.of.at(1).has_value()) << ends.of.at(1).error().message();
  EXPECT_EQ(ends.of.at(1)->note, note_of(1));
}

TEST(PeerConnectionFetch, ContentsHaveADeadlineFromWhenTheyAreWantedOn) {
  DirectLink link;
  link.pump();
  link.connection->fetch(FetchId(1), add_export(link), 1, link.clock.now() + seconds(2),
                         FetchContents::kOnDemand);
  link.pump();
  link.clock.advance(seconds(5));
  link.connection->fetch_contents(FetchId(1), link.clock.now() + seconds(2));
  link.let_pass(seconds(1));
  Ends ends;
  ends.look(link);
  EXPECT_TRUE(ends.of.empty());
  link.let_pass(seconds(1));
  ends.look(link);
  ASSERT_EQ(ends.of.size(), 1U);
  EXPECT_EQ(ends.of.at(1).error().code(), StatusCode::kDeadlineExceeded);
}

TEST(PeerConnectionFetch, ContentsMayBeWantedBeforeTheLeaseIsThere) {
  DirectLink link;
  const RequestKey key = add_export(link);
  link.connection->fetch(FetchId(1), key, 1, link.clock.now() + seconds(2),
                         FetchContents::kOnDemand);
  link.connection->fetch_contents(FetchId(1), link.clock.now() + seconds(60));
  link.pump();
  Ends ends;
  ends.look(link);
  ASSERT_EQ(ends.of.size(), 1U);
  EXPECT_TRUE(ends.of.at(1).has_value()) << ends.of.at(1).error().message();
}

TEST(PeerConnectionFetch, OnDemandALeaseThatEndsEndsTheFetch) {
  DirectLink link;
  link.pump();
  const RequestKey key = add_export(link);
  link.connection->fetch(FetchId(1), key, 1, link.clock.now() + seconds(60),
                         FetchContents::kOnDemand);
  link.pump();
  link.table.remove(key);
  link.clock.advance(seconds(10));  // the next heartbeat
  link.pump();
  Ends ends;
  ends.look(link);
  ASSERT_EQ(ends.of.size(), 1U);
  EXPECT_EQ(ends.of.at(1).error().code(), StatusCode::kNotFound);
  EXPECT_EQ(link.connection->num_leases(), 0);
}

}  // namespace peer_connection_fetch_test
}  // namespace karez::test
