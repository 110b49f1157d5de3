// Both sides over real sockets and UCX, in one process: the exporter serves from its own thread.
#include "remote/peer_pool.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <optional>
#include <string>

#include "remote/frame_sockets.h"
#include "remote/wire_frame.h"
#include "support/remote/two_nodes.h"

namespace karez::test {
namespace peer_pool_test {

using std::chrono::seconds;
using testing::HasSubstr;

// How blocks travel.
enum class Way { kMessages, kSharedMemory, kOneSided };

NodeOptions options_of(Way way) {
  NodeOptions options;
  options.share_memory = way == Way::kSharedMemory;
  options.one_sided_network = way == Way::kOneSided;
  return options;
}

class PeerPoolWays : public testing::TestWithParam<Way> {};

TEST_P(PeerPoolWays, ARequestIsFetchedReadAndReleased) {
  TwoNodes nodes(options_of(GetParam()));
  const KvExport exported = make_export(nodes.config, *nodes.memory, 5, 100);
  const RequestKey key = nodes.exporter->add(exported).value();
  const Expected<Manifest> manifest = nodes.fetch(key, 5);
  ASSERT_TRUE(manifest.has_value()) << manifest.error().to_string();
  EXPECT_EQ(manifest->epoch, 5U);
  EXPECT_EQ(manifest->tokens, exported.tokens);
  EXPECT_EQ(manifest->num_blocks, 7U);
  EXPECT_EQ(manifest->index, exported.index);
  EXPECT_EQ(manifest->note, exported.note);
  ASSERT_EQ(manifest->blocks.size(), exported.blocks.size());
  EXPECT_TRUE(nodes.pool->is_alive(manifest->lease));

  // All blocks in one call: runs of neighbours, and those of the last layer in reverse.
  std::vector<std::vector<std::byte>> memory(manifest->blocks.size(),
                                             std::vector<std::byte>(nodes.config.block_bytes));
  std::vector<RemoteRead> reads;
  for (std::size_t first = 0; first < memory.size(); first += kExtentBlocks) {
    RemoteRead read;
    read.ticket = first;
    read.lease = manifest->lease;
    for (std::size_t i = first; i < std::min(memory.size(), first + kExtentBlocks); ++i) {
      read.blocks[i - first] = manifest->blocks[i];
      read.memory[i - first] = memory[i].data();
      ++read.num_blocks;
    }
    reads.push_back(read);
  }
  nodes.pool->read(reads);
  EXPECT_EQ(nodes.pool->reads_in_flight(), static_cast<int>(reads.size()));
  std::vector<RemoteReadResult> results;
  ASSERT_TRUE(nodes.poll_until([&] {
    nodes.pool->take_reads(results);
    return results.size() == reads.size();
  }));
  for (const RemoteReadResult& result : results) {
    EXPECT_EQ(result.status, TransferStatus::kOk);
  }
  for (std::size_t i = 0; i < memory.size(); ++i) {
    EXPECT_TRUE(holds_block(nodes.config, memory[i], 5, manifest->blocks[i].offset)) << i;
  }
  const auto num_blocks = static_cast<std::int64_t>(memory.size());
  EXPECT_EQ(nodes.pool->stats().blocks_read, num_blocks);
  EXPECT_EQ(nodes.pool->stats().blocks_read_shared,
            GetParam() == Way::kSharedMemory ? num_blocks : 0);
  EXPECT_EQ(nodes.exporter->stats().blocks_sent, GetParam() == Way::kMessages ? num_blocks : 0);

  nodes.pool->release(manifest->lease);
  EXPECT_FALSE(nodes.pool->is_alive(manifest->lease));
  std::vector<EndedExport> ended;
  ASSERT_TRUE(nodes.poll_until([&] {
    nodes.exporter->poll(ended);
    return !ended.empty();
  }));
  EXPECT_EQ(ended[0].key, key);
  EXPECT_EQ(ended[0].end, ExportEnd::kReleased);
  EXPECT_EQ(nodes.exporter->stats().leases, 0);
}

INSTANTIATE_TEST_SUITE_P(Ways, PeerPoolWays,
                         testing::Values(Way::kMessages, Way::kSharedMemory, Way::kOneSided),
                         [](const testing::TestParamInfo<Way>& way) -> std::string {
                           return way.param == Way::kMessages       ? "Messages"
                                  : way.param == Way::kSharedMemory ? "SharedMemory"
                                                                    : "OneSided";
                         });

// A TCP connection that sends these bytes and stays.
class RawConnection {
 public:
  RawConnection(std::uint16_t port, const std::string& bytes)
      : descriptor_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    EXPECT_EQ(connect(descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;
  ~RawConnection() { close(descriptor_); }

 private:
  int descriptor_;
};

TEST(PeerPool, APortWhereNobodyListensIsNamed) {
  TwoNodes nodes;
  const PeerAddress address = nodes.address();
  nodes.exporter.reset();
  const FetchId id = nodes.pool->fetch(address, RequestKey{}, 1, nodes.clock.now() + seconds(60));
  std::optional<Expected<Manifest>> outcome;
  ASSERT_TRUE(nodes.poll_until([&] {
    outcome = nodes.pool->take(id);
    return outcome.has_value();
  }));
  ASSERT_FALSE(outcome->has_value());
  EXPECT_EQ(outcome->error().code(), StatusCode::kUnavailable);
  EXPECT_THAT(outcome->error().message(), HasSubstr(address.to_string()));
  EXPECT_EQ(nodes.pool->stats().connections, 0);
}

TEST(PeerPool, AHostThatIsNoAddressIsAnError) {
  TwoNodes nodes;
  const FetchId id =
      nodes.pool->fetch({"a host", 1}, RequestKey{}, 1, nodes.clock.now() + seconds(60));
  const std::optional<Expected<Manifest>> outcome = nodes.pool->take(id);
  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(outcome->error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(outcome->error().message(), testing::StartsWith("a host port 1: "));
}

TEST(PeerPool, ARefusalReachesTheFetch) {
  NodeOptions options;
  options.pool = [](PeerPoolOptions& pool) { pool.secret = "another"; };
  TwoNodes nodes(options);
  const Expected<Manifest> manifest = nodes.fetch(RequestKey{}, 1);
  ASSERT_FALSE(manifest.has_value());
  EXPECT_EQ(manifest.error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(manifest.error().message(), HasSubstr("their secrets differ"));
}

// The consumer sees it first, and goes.
TEST(PeerPool, AnotherSecretLeavesATraceAtTheExporter) {
  std::promise<std::string> told;
  NodeOptions options;
  options.pool = [](PeerPoolOptions& pool) { pool.secret = "another"; };
  options.exporter = [&](KvExporterOptions& exporter) {
    exporter.on_refused = [&](std::string_view what) { told.set_value(std::string(what)); };
  };
  TwoNodes nodes(options);
  ASSERT_FALSE(nodes.fetch(RequestKey{}, 1).has_value());
  ASSERT_TRUE(nodes.poll_until([&] { return nodes.exporter->stats().refused == 1; }));
  EXPECT_THAT(told.get_future().get(),
              testing::AllOf(testing::StartsWith("127.0.0.1 port "), HasSubstr("secrets differ")));
}

TEST(PeerPool, APortThatIsAnotherOneIsCalledSo) {
  TwoNodes nodes;
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const FetchId id = nodes.pool->fetch({"127.0.0.1", ntohs(address.sin_port)}, RequestKey{}, 1,
                                       nodes.clock.now() + seconds(60));
  const int accepted = ::accept(listener, nullptr, nullptr);
  const std::string http = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
  ASSERT_EQ(::send(accepted, http.data(), http.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(http.size()));
  std::optional<Expected<Manifest>> outcome;
  ASSERT_TRUE(nodes.poll_until([&] {
    outcome = nodes.pool->take(id);
    return outcome.has_value();
  }));
  EXPECT_THAT(outcome->error().message(), HasSubstr("this is not a KV port of karez"));
  ::close(accepted);
  ::close(listener);
}

// All TCP connections of this process but those of one port.
void break_connections_except(std::uint16_t port) {
  for (int descriptor = 0; descriptor < 1024; ++descriptor) {
    sockaddr_in ours = {};
    sockaddr_in theirs = {};
    socklen_t our_size = sizeof(ours);
    socklen_t their_size = sizeof(theirs);
    const bool is_connected =
        ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&ours), &our_size) == 0 &&
        ::getpeername(descriptor, reinterpret_cast<sockaddr*>(&theirs), &their_size) == 0;
    if (is_connected && ours.sin_family == AF_INET && ntohs(ours.sin_port) != port &&
        ntohs(theirs.sin_port) != port) {
      ::shutdown(descriptor, SHUT_RDWR);
    }
  }
}

TEST(PeerPool, WhereOneSidedReadsFailMessagesAreTheWay) {
  TwoNodes nodes(options_of(Way::kOneSided));
  const KvExport exported = make_export(nodes.config, *nodes.memory, 5, 100);
  const RequestKey key = nodes.exporter->add(exported).value();
  const Expected<Manifest> manifest = nodes.fetch(key, 5);
  ASSERT_TRUE(manifest.has_value()) << manifest.error().to_string();
  ASSERT_EQ(nodes.read(manifest->lease, manifest->blocks[0]), TransferStatus::kOk);
  ASSERT_EQ(nodes.exporter->stats().blocks_sent, 0);
  break_connections_except(nodes.exporter->port());
  for (std::size_t block = 1; block < 4; ++block) {
    EXPECT_EQ(nodes.read(manifest->lease, manifest->blocks[block]), TransferStatus::kOk);
    EXPECT_TRUE(holds_block(nodes.config, nodes.block, 5, manifest->blocks[block].offset));
  }
  EXPECT_EQ(nodes.exporter->stats().blocks_sent, 3);
  EXPECT_EQ(nodes.pool->stats().failures, 0);
}

TEST(PeerPool, AnExporterThatComesBackOnTheSameOrAnotherPortIsUsedAgain) {
  TwoNodes nodes;
  std::uint16_t port = nodes.exporter->port();
  for (int round = 0; round < 4; ++round) {
    const KvExport exported = make_export(nodes.config, *nodes.memory, 7, 40);
    const RequestKey key = nodes.exporter->add(exported).value();
    const Expected<Manifest> manifest = nodes.fetch(key, 7);
    ASSERT_TRUE(manifest.has_value()) << manifest.error().to_string();
    EXPECT_EQ(nodes.read(manifest->lease, manifest->blocks[1]), TransferStatus::kOk);
    nodes.exporter.reset();
    ASSERT_TRUE(nodes.poll_until([&] { return !nodes.pool->is_alive(manifest->lease); }));
    EXPECT_EQ(nodes.read(manifest->lease, manifest->blocks[1]), TransferStatus::kIoError);
    nodes.pool->release(manifest->lease);
    EXPECT_EQ(nodes.pool->stats().connections, 0);
    nodes.start_exporter(round % 2 == 0 ? port : 0);
    port = nodes.exporter->port();
  }
  const PeerPoolStats stats = nodes.pool->stats();
  EXPECT_EQ(stats.connects, 4);
  EXPECT_EQ(stats.leases, 0);
  EXPECT_EQ(stats.fetches, 0);
}

// What has come since the last poll() is looked at before a fetch takes a connection for alive.
TEST(PeerPool, AFetchDoesNotUseAConnectionThatHasEndedUnseen) {
  TwoNodes nodes;
  KvExport exported = make_export(nodes.config, *nodes.memory, 7, 40);
  ASSERT_TRUE(nodes.fetch(nodes.exporter->add(exported).value(), 7).has_value());
  const std::uint16_t port = nodes.exporter->port();
  nodes.exporter.reset();
  nodes.pool->wait_until(nodes.clock.now() + seconds(9));  // returns when the end is there
  nodes.start_exporter(port);
  const Expected<Manifest> again = nodes.fetch(nodes.exporter->add(exported).value(), 7);
  EXPECT_TRUE(again.has_value()) << again.error().to_string();
  EXPECT_EQ(nodes.pool->stats().connects, 2);
}

TEST(PeerPool, AFetchOnDemandHoldsALeaseUntilItsContentsAreWanted) {
  TwoNodes nodes;
  const KvExport exported = make_export(nodes.config, *nodes.memory, 5, 100);
  const RequestKey key = nodes.exporter->add(exported).value();
  const FetchId id = nodes.pool->fetch(nodes.address(), key, 5, nodes.clock.now() + seconds(60),
                                       FetchContents::kOnDemand);
  EXPECT_FALSE(nodes.pool->manifest_bytes(id).has_value());
  ASSERT_TRUE(nodes.poll_until([&] { return nodes.pool->manifest_bytes(id).has_value(); }));
  EXPECT_EQ(nodes.pool->manifest_bytes(id), 100 * sizeof(TokenId) +
                                                exported.blocks.size() * sizeof(RemoteBlock) +
                                                exported.index.size() + exported.note.size());
  EXPECT_FALSE(nodes.pool->take(id).has_value());
  EXPECT_EQ(nodes.exporter->stats().leases, 1);
  nodes.pool->fetch_contents(id, nodes.clock.now() + seconds(60));
  std::optional<Expected<Manifest>> outcome;
  ASSERT_TRUE(nodes.poll_until([&] {
    outcome = nodes.pool->take(id);
    return outcome.has_value();
  }));
  ASSERT_TRUE(outcome->has_value()) << outcome->error().to_string();
  EXPECT_EQ((*outcome)->index, exported.index);
  EXPECT_EQ((*outcome)->note, exported.note);
}

TEST(PeerPool, BytesThatAreNoMessagesDoNotDisturbOthers) {
  TwoNodes nodes;
  const std::uint16_t port = nodes.exporter->port();
  const RawConnection silent(port, "");
  const RawConnection http(port, "GET / HTTP/1.1\r\nHost: karez\r\n\r\n");
  const RawConnection long_length(port, std::string(8, '\xFF'));
  const RawConnection zeros(port, std::string(4096, '\0'));
  const KvExport exported = make_export(nodes.config, *nodes.memory, 7, 40);
  const RequestKey key = nodes.exporter->add(exported).value();
  const Expected<Manifest> manifest = nodes.fetch(key, 7);
  ASSERT_TRUE(manifest.has_value()) << manifest.error().to_string();
  EXPECT_EQ(nodes.read(manifest->lease, manifest->blocks[1]), TransferStatus::kOk);
}

// One that connects and says nothing, and one that says nonsense.
TEST(PeerPool, AConnectionWithoutAHandshakeEndsInTime) {
  TwoNodes nodes;
  int broken = 0;
  int answers = 0;
  FrameSocketsCallbacks callbacks;
  callbacks.on_broken = [&](ConnectionId, const Status&) { ++broken; };
  callbacks.on_frame = [&](ConnectionId, std::span<const std::byte>) { ++answers; };
  const std::unique_ptr<FrameSockets> stranger = FrameSockets::create(callbacks).value();
  ASSERT_TRUE(stranger->connect("127.0.0.1", nodes.exporter->port()).has_value());
  const ConnectionId talker = stranger->connect("127.0.0.1", nodes.exporter->port()).value();
  stranger->send(talker, WireWriter(WireType::kHello, 1).put(std::uint64_t{7}).finish());
  const auto progress = [&] {
    stranger->progress();
    return true;
  };
  ASSERT_TRUE(nodes.poll_until([&] {
    return progress() && nodes.exporter->stats().connections == 2 &&
           nodes.exporter->stats().bad_messages == 1;
  }));
  nodes.clock.advance(KvExporterOptions().hello_timeout);
  ASSERT_TRUE(nodes.poll_until(
      [&] { return progress() && nodes.exporter->stats().connections == 0 && broken == 2; }));
  EXPECT_EQ(answers, 1);  // what was wrong
}

TEST(PeerPool, NoMoreConnectionsAreTakenThanAllowed) {
  NodeOptions options;
  options.exporter = [](KvExporterOptions& exporter) { exporter.max_connections = 1; };
  TwoNodes nodes(options);
  const RequestKey key =
      nodes.exporter->add(make_export(nodes.config, *nodes.memory, 7, 40)).value();
  ASSERT_TRUE(nodes.fetch(key, 7).has_value());
  PeerPoolOptions second_options;
  second_options.config = nodes.config;
  second_options.transports = "tcp";
  const auto second = PeerPool::create(second_options, nodes.clock).value();
  const FetchId id = second->fetch(nodes.address(), key, 7, nodes.clock.now() + seconds(60));
  std::optional<Expected<Manifest>> outcome;
  ASSERT_TRUE(nodes.poll_until([&] {
    second->poll();
    outcome = second->take(id);
    return outcome.has_value();
  }));
  EXPECT_EQ(outcome->error().code(), StatusCode::kUnavailable);
  EXPECT_EQ(nodes.exporter->stats().connections, 1);
}

TEST(PeerPool, LeasesComeToTheirStartWhateverBecomesOfFetches) {
  TwoNodes nodes;
  std::vector<FetchId> fetches;
  for (int i = 0; i < 6; ++i) {
    const RequestKey key =
        nodes.exporter->add(make_export(nodes.config, *nodes.memory, 7, 200)).value();
    fetches.push_back(nodes.pool->fetch(nodes.address(), key, 7, nodes.clock.now() + seconds(60)));
  }
  nodes.pool->cancel(fetches[0]);
  ASSERT_TRUE(nodes.poll_until([&] { return nodes.pool->stats().leases >= 2; }));
  for (const FetchId id : fetches) {
    nodes.pool->cancel(id);
  }
  std::vector<EndedExport> ended;
  ASSERT_TRUE(nodes.poll_until([&] {
    nodes.exporter->poll(ended);
    return nodes.exporter->stats().leases == 0 && nodes.pool->stats().leases == 0 &&
           nodes.pool->stats().bytes_received > 0 && ended.size() >= 2;
  }));
  EXPECT_EQ(nodes.pool->stats().fetches, 0);
  nodes.clock.advance(seconds(30));
  nodes.exporter->poll(ended);
  EXPECT_EQ(ended.size(), 6U);
  EXPECT_EQ(nodes.exporter->stats().exports, 0);
}

}  // namespace peer_pool_test
}  // namespace karez::test
