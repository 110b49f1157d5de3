// Frames over real sockets: peers that do not listen, and a process without descriptors.
#include "remote/frame_sockets.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "remote/wire_messages.h"
#include "support/remote/two_nodes.h"

namespace karez::test {
namespace frame_sockets_test {

// One that answers each frame with a long one, and one that asks.
class TwoSockets {
 public:
  explicit TwoSockets(std::size_t max_unsent_bytes) {
    FrameSocketsCallbacks callbacks;
    callbacks.on_accept = [this](ConnectionId id, const std::string&) {
      accepted = id;
      return true;
    };
    callbacks.on_frame = [this](ConnectionId id, std::span<const std::byte>) {
      ++num_asked;
      server->send(id, WireWriter(WireType::kPart, 1).put_bytes(body).finish());
    };
    callbacks.on_broken = [this](ConnectionId, const Status&) { ++num_broken; };
    server = FrameSockets::create(callbacks, max_unsent_bytes).value();
    callbacks.on_frame = [this](ConnectionId, std::span<const std::byte>) { ++num_answers; };
    client = FrameSockets::create(callbacks).value();
  }

  static bool is_true_in_time(const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) {
        return false;
      }
    }
    return true;
  }

  std::vector<std::byte> body = std::vector<std::byte>(256 << 10U);
  std::unique_ptr<FrameSockets> server;
  std::unique_ptr<FrameSockets> client;
  ConnectionId accepted = 0;
  int num_asked = 0;
  int num_answers = 0;
  int num_broken = 0;
};

TEST(FrameSockets, APeerThatDoesNotListenIsNotHeardUntilItDoes) {
  constexpr std::size_t kMaxUnsent = 1 << 20U;
  constexpr int kNumQuestions = 200;  // more than the system buffers, in answers
  TwoSockets sockets(kMaxUnsent);
  const std::uint16_t port = sockets.server->listen("127.0.0.1", 0).value();
  const ConnectionId connection = sockets.client->connect("127.0.0.1", port).value();
  for (int i = 0; i < kNumQuestions; ++i) {
    sockets.client->send(connection, WireWriter(WireType::kFetchPart, 1).finish());
  }
  ASSERT_TRUE(TwoSockets::is_true_in_time([&] {
    sockets.client->progress();  // sends; no answer is there before the server has moved
    return sockets.client->bytes_unsent(connection) == 0;
  }));
  ASSERT_TRUE(TwoSockets::is_true_in_time([&] {
    sockets.server->progress();
    return sockets.server->is_held_back(sockets.accepted);
  }));
  EXPECT_LT(sockets.num_asked, kNumQuestions);
  EXPECT_LT(sockets.server->bytes_unsent(sockets.accepted), kMaxUnsent + 2 * sockets.body.size());
  ASSERT_TRUE(TwoSockets::is_true_in_time([&] {
    sockets.client->progress();
    sockets.server->progress();
    return sockets.num_answers == kNumQuestions;
  }));
  EXPECT_EQ(sockets.num_asked, kNumQuestions);
  EXPECT_EQ(sockets.num_broken, 0);
  EXPECT_FALSE(sockets.server->is_held_back(sockets.accepted));
}

TEST(FrameSockets, OneThatIsNotHeardAndGoesIsReported) {
  TwoSockets sockets(1 << 20U);
  const std::uint16_t port = sockets.server->listen("127.0.0.1", 0).value();
  const ConnectionId connection = sockets.client->connect("127.0.0.1", port).value();
  for (int i = 0; i < 200; ++i) {
    sockets.client->send(connection, WireWriter(WireType::kFetchPart, 1).finish());
  }
  ASSERT_TRUE(TwoSockets::is_true_in_time([&] {
    sockets.client->progress();
    return sockets.client->bytes_unsent(connection) == 0;
  }));
  ASSERT_TRUE(TwoSockets::is_true_in_time([&] {
    sockets.server->progress();
    return sockets.server->is_held_back(sockets.accepted);
  }));
  sockets.client->close(connection);
  EXPECT_TRUE(TwoSockets::is_true_in_time([&] {
    sockets.server->progress();
    return sockets.num_broken == 1;
  }));
}

// Whoever waits for the descriptor would turn round and round.
TEST(FrameSockets, WithoutDescriptorsAConnectionWaitsAndDoesNotWake) {
  TwoSockets sockets(FrameSockets::kNoLimit);
  const std::uint16_t port = sockets.server->listen("127.0.0.1", 0).value();
  ASSERT_TRUE(sockets.client->connect("127.0.0.1", port).has_value());
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlim_t before = limit.rlim_cur;
  const int lowest_free = dup(0);
  ASSERT_GE(lowest_free, 0);
  close(lowest_free);
  limit.rlim_cur = static_cast<rlim_t>(lowest_free);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);

  pollfd descriptor = {sockets.server->descriptor(), POLLIN, 0};
  const int woken =
      poll(&descriptor, 1, static_cast<int>(kPatience / std::chrono::milliseconds(1)));
  sockets.server->progress();
  descriptor.revents = 0;
  const int woken_again = poll(&descriptor, 1, 0);
  limit.rlim_cur = before;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(woken, 1);
  EXPECT_EQ(woken_again, 0);
  EXPECT_EQ(sockets.accepted, 0U);
  EXPECT_TRUE(TwoSockets::is_true_in_time([&] {
    sockets.server->progress();
    return sockets.accepted != 0;
  }));
}

}  // namespace frame_sockets_test
}  // namespace karez::test
