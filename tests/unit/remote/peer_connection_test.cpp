// Both ends of a connection, without a transport: handshakes, leases, and messages that make no
// sense.
#include "remote/peer_connection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kv/tier/home_space.h"
#include "support/remote/direct_link.h"

namespace karez::test {
namespace peer_connection_test {

using std::chrono::seconds;
using testing::HasSubstr;

RequestKey add_export(DirectLink& link, std::uint64_t epoch = 1) {
  KvExport made;
  made.epoch = epoch;
  made.tokens.assign(20, 3);
  made.num_blocks = 2;
  for (std::size_t i = 0; i < 8; ++i) {
    const std::size_t offset = i * link.context.config.block_bytes;
    std::fill_n(link.memory.begin() + static_cast<std::ptrdiff_t>(offset),
                link.context.config.block_bytes, static_cast<std::byte>(i + 1));
    made.blocks.push_back(
        {offset, block_checksum(link.memory.data() + offset, link.context.config.block_bytes)});
  }
  made.blocks[7] = {};
  return link.table.add(std::move(made), link.clock.now()).value();
}

// A read of one block of the manifest; its result, if there is one.
struct OneRead {
  std::vector<std::byte> memory = std::vector<std::byte>(1024, std::byte{0xEE});
  std::optional<TransferStatus> status;

  void begin(DirectLink& link, const RemoteBlock& block) {
    RemoteRead read;
    read.num_blocks = 1;
    read.blocks[0] = block;
    read.memory[0] = memory.data();
    link.connection->read(link.lease, read);
    link.connection->flush(link.clock.now());
    look(link);
  }
  void look(DirectLink& link) {
    std::vector<RemoteReadResult> results;
    link.connection->take_reads(results);
    if (!results.empty()) {
      status = results[0].status;
    }
  }
  bool is_untouched() const {
    return std::all_of(memory.begin(), memory.end(),
                       [](std::byte byte) { return byte == std::byte{0xEE}; });
  }
};

TEST(PeerConnection, ShakesHandsWithOrWithoutASecret) {
  for (const char* secret : {"", "a secret"}) {
    DirectLink link(small_config(), small_config(), secret, secret);
    link.pump();
    EXPECT_TRUE(link.connection->is_ready()) << link.connection->problem().message();
    EXPECT_TRUE(link.session->is_ready());
    EXPECT_EQ(link.exporter_stats.handshakes, 1);
  }
}

TEST(PeerConnection, AnotherSecretIsRefused) {
  DirectLink link(small_config(), small_config(), "mine", "yours");
  link.pump();
  EXPECT_TRUE(link.connection->is_broken());
  EXPECT_EQ(link.connection->problem().message(), "peers do not fit: their secrets differ");
  EXPECT_FALSE(link.session->is_ready());
}

TEST(PeerConnection, AConsumerWithoutTheSecretCannotGoOnByItself) {
  DirectLink link(small_config(), small_config(), "mine", "mine");
  link.pump_one();  // hello, and its reply
  link.to_producer.clear();
  link.to_producer.push_back(encode(9, ConfirmMessage{}));
  link.pump();
  EXPECT_FALSE(link.session->is_ready());
  EXPECT_EQ(link.exporter_stats.refused, 1);
  // Nor by asking all the same.
  link.to_producer.push_back(encode(10, FetchMessage{}));
  link.pump();
  EXPECT_TRUE(link.was_closed);
}

// One differing field each; the message names it and both values.
TEST(PeerConnection, PeersThatDifferInOneFieldRefuseEachOther) {
  struct Case {
    std::function<void(PeerConfig&)> change;
    std::string message;
  };
  const std::vector<Case> cases = {
      {[](PeerConfig& config) { config.model_digest[31] = 1; }, "model_digest is ab"},
      {[](PeerConfig& config) { config.num_layers = 3; }, "num_layers is 2 here and 3 there"},
      {[](PeerConfig& config) { config.num_kv_heads = 8; }, "num_kv_heads is 2 here and 8 there"},
      {[](PeerConfig& config) { config.head_dim = 32; }, "head_dim is 16 here and 32 there"},
      {[](PeerConfig& config) { config.block_tokens = 32; },
       "block_tokens is 16 here and 32 there"},
      {[](PeerConfig& config) { config.block_bytes = 512; },
       "block_bytes is 1024 here and 512 there"},
      {[](PeerConfig& config) { config.kv_type = "q8_0"; }, "kv_type is bf16 here and q8_0 there"},
      {[](PeerConfig& config) { config.index_kind = "none"; },
       "index_kind is r2 here and none there"},
      {[](PeerConfig& config) { config.index_bytes = 0; }, "index_bytes is 64 here and 0 there"},
  };
  for (const Case& one : cases) {
    PeerConfig producer = small_config();
    one.change(producer);
    DirectLink link(small_config(), producer);
    link.pump();
    EXPECT_TRUE(link.connection->is_broken());
    EXPECT_THAT(link.connection->problem().message(), HasSubstr(one.message));
    EXPECT_EQ(link.connection->problem().code(), StatusCode::kInvalidArgument);
    EXPECT_FALSE(link.session->is_ready());
    EXPECT_EQ(link.exporter_stats.refused, 1);
  }
}

TEST(PeerConnection, AWireTypeThatTheExporterDoesNotKnowIsRefused) {
  PeerConfig consumer = small_config();
  consumer.wire_type = "r5";
  DirectLink link(consumer);
  link.pump();
  EXPECT_EQ(link.connection->problem().message(),
            "peers do not fit: wire_type is r5 here and native there");
  EXPECT_EQ(link.exporter_stats.refused, 1);
}

TEST(PeerConnection, AnR4ConsumerOfBlocksThatCannotBeCodedIsRefused) {
  PeerConfig consumer = small_config();
  consumer.head_dim = 24;
  PeerConfig producer = consumer;
  DirectLink link(consumer, producer);
  consumer.wire_type = kR4Wire;
  link.to_producer.clear();
  link.to_producer.push_back(encode(1, HelloMessage{{}, consumer}));
  link.pump();
  EXPECT_THAT(link.connection->problem().message(), HasSubstr("head_dim is 24, allowed with"));
  EXPECT_FALSE(link.session->is_ready());
}

TEST(PeerConnection, AConsumerChoosesTheWireTypeAndOthersAreNotConcerned) {
  PeerConfig consumer = small_config();
  consumer.wire_type = kR4Wire;
  DirectLink link(consumer);
  const RequestKey key = add_export(link);
  const Manifest manifest = link.fetch(key, 1)->value();
  OneRead read;
  read.begin(link, manifest.blocks[2]);
  const std::int64_t before = link.pool_stats.bytes_received;
  link.pump();
  read.look(link);
  EXPECT_EQ(read.status, TransferStatus::kOk);
  EXPECT_EQ(link.pool_stats.bytes_received - before, 32 + 16 + 8 + 320);
  std::vector<std::byte> coded(wire_block_bytes(consumer));
  std::vector<std::byte> arrived(1024);
  WireBlocks(consumer).put(link.memory.data() + 2 * 1024, coded.data());
  ASSERT_TRUE(WireBlocks(consumer).take(coded.data(), manifest.blocks[2].checksum, arrived.data()));
  EXPECT_EQ(read.memory, arrived);

  ExportSession other(link.context, 2);
  const auto answer = other.handle(encode(1, HelloMessage{{}, small_config()}), link.clock.now());
  const auto reply = decode_hello_reply(read_frame(answer.frame)->body);
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->config.wire_type, kNativeWire);
}

TEST(PeerConnection, PeersMayHaveSequencesOfOtherLengths) {
  PeerConfig longer = small_config();
  longer.max_tokens = 4096;
  DirectLink link(small_config(), longer);
  link.pump();
  EXPECT_TRUE(link.connection->is_ready());
}

TEST(PeerConnection, AnOlderVersionIsToldBothVersions) {
  DirectLink link;
  link.to_producer.front()[4] = std::byte{0};
  link.pump();
  EXPECT_THAT(link.connection->problem().message(),
              HasSubstr("the wire version is 1 here and 0 there"));
}

TEST(PeerConnection, GarbageInPlaceOfAHelloIsRefusedThenCutOff) {
  DirectLink link;
  for (const std::size_t size : {0U, 1U, 31U, 32U, 500U}) {
    link.session = std::make_unique<ExportSession>(link.context, 1);
    const std::vector<std::byte> garbage(size, std::byte{0x5A});
    const ExportSession::Answer answer = link.session->handle(garbage, link.clock.now());
    EXPECT_TRUE(read_frame(answer.frame).has_value());
    EXPECT_FALSE(link.session->is_ready());
    EXPECT_TRUE(link.session->handle(garbage, link.clock.now()).closes);
  }
}

TEST(PeerConnection, ASilentPeerIsGivenUp) {
  DirectLink link;
  link.to_producer.clear();
  link.connection->fetch(FetchId(1), RequestKey{}, 1, link.clock.now() + seconds(60));
  link.let_pass(link.options.connect_timeout);
  EXPECT_TRUE(link.connection->is_broken());
  std::vector<PeerConnection::FetchEnd> ends;
  link.connection->take_fetches(ends);
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0].outcome.error().code(), StatusCode::kUnavailable);
}

TEST(PeerConnection, AManifestThatComesTooLateIsReleased) {
  DirectLink link;
  link.pump();
  const RequestKey key = add_export(link);
  link.connection->fetch(FetchId(1), key, 1, link.clock.now() + seconds(2));
  link.clock.advance(seconds(2));
  // The question was sent; the answer comes after the deadline.
  const std::vector<std::byte> question = link.to_producer.front();
  link.to_producer.clear();
  link.connection->tick(link.clock.now());
  std::vector<PeerConnection::FetchEnd> ends;
  link.connection->take_fetches(ends);
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0].outcome.error().code(), StatusCode::kDeadlineExceeded);
  link.to_producer.push_back(question);
  link.pump();
  EXPECT_EQ(link.table.num_leases(), 0);
  EXPECT_FALSE(link.connection->is_broken());
}

TEST(PeerConnection, AForeignKeyAndAnotherEpochAreErrorsOfTheFetchOnly) {
  DirectLink link;
  const RequestKey key = add_export(link, 4);
  EXPECT_EQ(link.fetch(RequestKey{}, 4)->error().code(), StatusCode::kNotFound);
  EXPECT_THAT(link.fetch(key, 5)->error().message(), HasSubstr("epoch 4, asked for is epoch 5"));
  EXPECT_TRUE(link.fetch(key, 4)->has_value());
  EXPECT_EQ(link.pool_stats.failures, 0);
}

TEST(PeerConnection, BlocksAreReadAndAbsentOnesAreNot) {
  DirectLink link;
  const Manifest manifest = link.fetch(add_export(link), 1)->value();
  OneRead read;
  read.begin(link, manifest.blocks[2]);
  link.pump();
  read.look(link);
  EXPECT_EQ(read.status, TransferStatus::kOk);
  EXPECT_EQ(read.memory[1023], std::byte{3});
  OneRead absent;
  absent.begin(link, manifest.blocks[7]);
  EXPECT_EQ(absent.status, TransferStatus::kChecksumMismatch);
}

TEST(PeerConnection, ABlockWithOtherBytesIsAFailedReadAndNotWritten) {
  for (const std::string_view wire_type : {kNativeWire, kR4Wire}) {
    PeerConfig consumer = small_config();
    consumer.wire_type = wire_type;
    DirectLink link(consumer);
    const Manifest manifest = link.fetch(add_export(link), 1)->value();
    link.memory[2 * 1024 + 77] ^= std::byte{4};
    OneRead read;
    read.begin(link, manifest.blocks[2]);
    link.pump();
    read.look(link);
    EXPECT_EQ(read.status, TransferStatus::kChecksumMismatch) << wire_type;
    EXPECT_TRUE(read.is_untouched());
  }
}

TEST(PeerConnection, AReadThatComesAfterItsTimeLimitWritesNothing) {
  DirectLink link;
  const Manifest manifest = link.fetch(add_export(link), 1)->value();
  OneRead read;
  read.begin(link, manifest.blocks[2]);
  const std::vector<std::byte> question = link.to_producer.back();
  link.let_pass(link.options.read_timeout);
  read.look(link);
  EXPECT_EQ(read.status, TransferStatus::kDeadlinePassed);
  link.to_producer.push_back(question);
  link.pump();
  EXPECT_TRUE(read.is_untouched());
  EXPECT_TRUE(link.connection->is_ready());
}

TEST(PeerConnection, ASilentPeerIsWaitedForOnceAndAskedAgainWhenItHasAnswered) {
  DirectLink link;
  const Manifest manifest = link.fetch(add_export(link), 1)->value();
  OneRead first;
  first.begin(link, manifest.blocks[2]);
  link.let_pass(link.options.read_timeout / 2);
  OneRead second;  // not late itself
  second.begin(link, manifest.blocks[3]);
  link.let_pass(link.options.read_timeout / 2);
  std::vector<RemoteReadResult> results;
  link.connection->take_reads(results);
  ASSERT_EQ(results.size(), 2U);
  EXPECT_EQ(results[1].status, TransferStatus::kDeadlinePassed);
  EXPECT_TRUE(link.connection->is_alive(link.lease, link.clock.now()));
  OneRead third;
  third.begin(link, manifest.blocks[2]);
  EXPECT_EQ(third.status, TransferStatus::kDeadlinePassed);
  link.pump();
  OneRead again;
  again.begin(link, manifest.blocks[2]);
  link.pump();
  again.look(link);
  EXPECT_EQ(again.status, TransferStatus::kOk);
}

TEST(PeerConnection, AFetchFromASilentPeerEndsBeforeItsDeadlineAndOneThatGetsBytesDoesNot) {
  for (const bool is_silent : {true, false}) {
    DirectLink link;
    link.pump();
    link.connection->fetch(FetchId(1), add_export(link), 1, link.clock.now() + seconds(30));
    std::vector<PeerConnection::FetchEnd> ends;
    for (Clock::Duration passed = {}; passed < link.options.read_timeout; passed += seconds(1)) {
      link.connection->take_fetches(ends);
      EXPECT_TRUE(ends.empty());
      link.clock.advance(seconds(1));
      if (!is_silent) {
        link.connection->on_heard(link.clock.now());
      }
      link.connection->tick(link.clock.now());
    }
    link.connection->take_fetches(ends);
    ASSERT_EQ(ends.size(), is_silent ? 1U : 0U);
    if (is_silent) {
      EXPECT_EQ(ends[0].outcome.error().message(), "the peer has not answered for 5 s");
    }
  }
}

// Between two looks is a step of the engine, longer than any time limit here.
TEST(PeerConnection, TheOwnLongStepIsNotThePeersSilence) {
  DirectLink link;
  link.clock.advance(seconds(12));
  link.pump();
  ASSERT_TRUE(link.connection->is_ready()) << link.connection->problem().message();
  const Manifest manifest = link.fetch(add_export(link), 1)->value();
  OneRead read;
  read.begin(link, manifest.blocks[2]);
  const ExportSession::Answer answer =
      link.session->handle(link.to_producer.back(), link.clock.now());
  link.to_producer.clear();
  link.clock.advance(seconds(12));
  link.connection->tick(link.clock.now());  // the answer lies unread
  read.look(link);
  EXPECT_FALSE(read.status.has_value());
  EXPECT_FALSE(link.connection->is_silent());
  link.connection->on_frame(answer.frame, link.clock.now());
  read.look(link);
  EXPECT_EQ(read.status, TransferStatus::kOk);
}

TEST(PeerConnection, SilenceBeforeAndAfterALongStepIsOne) {
  DirectLink link;
  const Manifest manifest = link.fetch(add_export(link), 1)->value();
  OneRead read;
  read.begin(link, manifest.blocks[2]);
  link.let_pass(seconds(2));
  link.clock.advance(seconds(12));  // one second of it counts
  link.connection->tick(link.clock.now());
  link.let_pass(seconds(1));
  read.look(link);
  EXPECT_FALSE(read.status.has_value());
  link.let_pass(seconds(1));
  read.look(link);
  EXPECT_EQ(read.status, TransferStatus::kDeadlinePassed);
  EXPECT_TRUE(link.connection->is_silent());
}

// Whoever sleeps until then would take the sleep for a pause of its own.
TEST(PeerConnection, AnAnswerIsLookedForOftenerThanItsTimeLimit) {
  DirectLink link;
  const auto latest = [&] { return link.clock.now() + PeerConnection::kSilenceStep; };
  EXPECT_LE(link.connection->tick(link.clock.now()), latest());
  const Manifest manifest = link.fetch(add_export(link), 1)->value();
  EXPECT_GT(link.connection->tick(link.clock.now()), latest());
  OneRead read;
  read.begin(link, manifest.blocks[2]);
  EXPECT_LE(link.connection->tick(link.clock.now()), latest());
}

TEST(PeerConnection, AnAnswerToAHeartbeatThatComesTooLateIsNoBreach) {
  DirectLink link;
  link.context.ready.lease_ms = 5000;
  link.fetch(add_export(link), 1)->value();
  link.clock.advance(seconds(2));
  link.connection->tick(link.clock.now());
  ASSERT_EQ(read_frame(link.to_producer.back())->type, WireType::kHeartbeat);
  const ExportSession::Answer late =
      link.session->handle(link.to_producer.back(), link.clock.now());
  link.clock.advance(seconds(6));
  link.connection->tick(link.clock.now());
  EXPECT_FALSE(link.connection->is_alive(link.lease, link.clock.now()));
  link.connection->on_frame(late.frame, link.clock.now());
  EXPECT_TRUE(link.connection->is_ready()) << link.connection->problem().message();
  EXPECT_EQ(link.connection->num_leases(), 0);
}

TEST(PeerConnection, HeartbeatsKeepALease) {
  DirectLink link;
  link.fetch(add_export(link), 1)->value();
  for (int i = 0; i < 20; ++i) {
    link.clock.advance(seconds(10));
    link.pump();
  }
  EXPECT_TRUE(link.connection->is_alive(link.lease, link.clock.now()));
  EXPECT_EQ(link.pool_stats.leases_lost, 0);
}

TEST(PeerConnection, ALeaseEndsWithoutHeartbeatsOnBothSides) {
  DirectLink link;
  const Manifest manifest = link.fetch(add_export(link), 1)->value();
  link.clock.advance(seconds(30));
  EXPECT_FALSE(link.connection->is_alive(link.lease, link.clock.now()));
  // A consumer that asks all the same is told so.
  OneRead read;
  read.begin(link, manifest.blocks[2]);
  ExportSession::Answer answer = link.session->handle(link.to_producer.back(), link.clock.now());
  link.connection->on_frame(answer.frame, link.clock.now());
  read.look(link);
  EXPECT_EQ(read.status, TransferStatus::kIoError);
  EXPECT_TRUE(read.is_untouched());
  EXPECT_EQ(link.exporter_stats.reads_refused, 1);
  EXPECT_TRUE(link.connection->is_ready());
}

TEST(PeerConnection, ALeaseThatTheExporterHasEndedIsLostWithTheNextHeartbeat) {
  DirectLink link;
  const RequestKey key = add_export(link);
  link.fetch(key, 1)->value();
  link.table.remove(key);
  link.clock.advance(seconds(10));
  link.pump();
  EXPECT_FALSE(link.connection->is_alive(link.lease, link.clock.now()));
  EXPECT_EQ(link.pool_stats.leases_lost, 1);
}

TEST(PeerConnection, ReleasingCancelsReadsThatAreUnderWay) {
  DirectLink link;
  const Manifest manifest = link.fetch(add_export(link), 1)->value();
  OneRead read;
  read.begin(link, manifest.blocks[2]);
  link.connection->release(link.lease);
  read.look(link);
  EXPECT_EQ(read.status, TransferStatus::kCancelled);
  link.pump();
  EXPECT_TRUE(read.is_untouched());
  EXPECT_EQ(link.table.num_exports(), 0);
}

TEST(PeerConnection, EverythingFailsWhenTheConnectionBreaks) {
  DirectLink link;
  const RequestKey key = add_export(link);
  const Manifest manifest = link.fetch(key, 1)->value();
  OneRead read;
  read.begin(link, manifest.blocks[2]);
  link.connection->fetch(FetchId(3), key, 1, link.clock.now() + seconds(9));
  link.connection->on_broken({StatusCode::kUnavailable, "gone"});
  read.look(link);
  EXPECT_EQ(read.status, TransferStatus::kIoError);
  std::vector<PeerConnection::FetchEnd> ends;
  link.connection->take_fetches(ends);
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0].outcome.error().message(), "gone");
  EXPECT_EQ(link.connection->num_leases(), 0);
}

TEST(PeerConnection, AnExporterThatSendsWhatNobodyAskedForIsCutOff) {
  DirectLink link;
  link.fetch(add_export(link), 1)->value();
  link.connection->on_frame(encode_heartbeat_ack(77, {}), link.clock.now());
  EXPECT_TRUE(link.connection->is_broken());
  EXPECT_EQ(link.connection->problem().code(), StatusCode::kCorruption);
}

TEST(PeerConnection, AConsumerThatAsksForBlocksBeyondTheExportIsRefused) {
  DirectLink link;
  link.fetch(add_export(link), 1)->value();
  for (const std::uint32_t index : {7U, 8U, 0xFFFFFFFFU}) {
    link.session = std::make_unique<ExportSession>(link.context, 1);
    link.connection = std::make_unique<PeerConnection>(
        link.options, link.pool_stats,
        [&](std::vector<std::byte> frame) { link.to_producer.push_back(std::move(frame)); },
        link.clock.now());
    link.pump();
    const ExportSession::Answer answer =
        link.session->handle(encode(5, ReadBlocksMessage{link.lease, {index}}), link.clock.now());
    EXPECT_EQ(read_frame(answer.frame)->type, WireType::kError);
    EXPECT_FALSE(link.session->is_ready());
  }
}

}  // namespace peer_connection_test
}  // namespace karez::test
