// The exporter's port, and consumers that ask for more than they listen to.
#include "remote/kv_exporter.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "remote/frame_sockets.h"
#include "remote/peer_connection.h"
#include "remote/wire_messages.h"
#include "support/remote/two_nodes.h"

namespace karez::test {
namespace kv_exporter_test {

constexpr int kNumParts = 400;  // more than the exporter and the system hold, in bytes

// A connection whose questions are the test's after the handshake.
class Asker {
 public:
  explicit Asker(TwoNodes& nodes) : nodes_(nodes) {
    FrameSocketsCallbacks callbacks;
    callbacks.on_frame = [this](ConnectionId, std::span<const std::byte> bytes) { take(bytes); };
    callbacks.on_broken = [this](ConnectionId, const Status&) { is_broken = true; };
    sockets = FrameSockets::create(std::move(callbacks)).value();
    id = sockets->connect("127.0.0.1", nodes.exporter->port()).value();
    options_.config = nodes.config;
    handshake_ = std::make_unique<PeerConnection>(
        options_, stats_,
        [this](std::vector<std::byte> frame) { sockets->send(id, std::move(frame)); },
        nodes.clock.now());
  }

  // Asks for all parts, and listens to none.
  bool ask(const RequestKey& key, std::uint64_t epoch) {
    const auto progress = [this](const std::function<bool()>& condition) {
      return nodes_.poll_until([&] {
        sockets->progress();
        return condition();
      });
    };
    if (!progress([&] { return handshake_->is_ready(); })) {
      return false;
    }
    sockets->send(id, encode(1000, FetchMessage{key, epoch}));
    if (!progress([&] { return lease_.has_value(); })) {
      return false;
    }
    for (int i = 0; i < kNumParts; ++i) {
      sockets->send(id, encode(static_cast<std::uint64_t>(2000 + i),
                               FetchPartMessage{*lease_, ManifestSection::kNote, kPartBytes, 0}));
    }
    return sockets->bytes_unsent(id) == 0;
  }

  std::unique_ptr<FrameSockets> sockets;
  ConnectionId id = 0;
  int num_parts = 0;
  bool is_broken = false;

 private:
  void take(std::span<const std::byte> bytes) {
    const WireFrame frame = read_frame(bytes).value();
    if (frame.type == WireType::kPart) {
      ++num_parts;
    } else if (frame.type == WireType::kManifest) {
      lease_ = decode_manifest(frame.body, options_.config, options_.max_index_bytes)->lease;
    } else {
      handshake_->on_frame(bytes, nodes_.clock.now());
    }
  }

  TwoNodes& nodes_;
  PeerPoolOptions options_;
  PeerPoolStats stats_;
  std::unique_ptr<PeerConnection> handshake_;
  std::optional<std::uint64_t> lease_;
};

RequestKey add_export_with_long_note(TwoNodes& nodes) {
  KvExport exported = make_export(nodes.config, *nodes.memory, 7, 40);
  exported.note.assign(kPartBytes, std::byte{9});
  return nodes.exporter->add(std::move(exported)).value();
}

bool is_held_back(TwoNodes& nodes) {
  return nodes.poll_until([&] { return nodes.exporter->stats().held_back == 1; });
}

TEST(KvExporter, AConsumerThatAsksForMuchAtOnceGetsItAll) {
  TwoNodes nodes;
  Asker asker(nodes);
  ASSERT_TRUE(asker.ask(add_export_with_long_note(nodes), 7));
  ASSERT_TRUE(is_held_back(nodes));
  EXPECT_LT(nodes.exporter->stats().bytes_sent, std::int64_t{kNumParts} * kPartBytes);
  ASSERT_TRUE(nodes.poll_until([&] {
    asker.sockets->progress();
    return asker.num_parts == kNumParts || asker.is_broken;
  }));
  EXPECT_EQ(asker.num_parts, kNumParts);
  EXPECT_EQ(nodes.exporter->stats().leases, 1);
}

TEST(KvExporter, AConsumerThatNeverListensIsCutOffWithItsLeases) {
  TwoNodes nodes;
  Asker asker(nodes);
  ASSERT_TRUE(asker.ask(add_export_with_long_note(nodes), 7));
  ASSERT_TRUE(is_held_back(nodes));
  nodes.clock.advance(KvExporterOptions().lease_duration);
  EXPECT_TRUE(nodes.poll_until([&] { return nodes.exporter->stats().connections == 0; }));
}

}  // namespace kv_exporter_test
}  // namespace karez::test
