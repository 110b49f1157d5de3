// FrameSockets: frames between this process and its peers, over TCP.
//
// Plain sockets and not UCX: UCX 1.13's listener aborts the process that gets bytes it does not
// expect, and everything here may come from a stranger. A buffer grows as bytes come, not as a
// length promises.
// A peer that asks and does not listen is not heard while more than max_unsent_bytes wait for it:
// its questions stay in the system's buffers, and with it. Only one side may have such a limit: two
// would wait for each other. A connection that ends, and one whose bytes are no frames, is reported
// once; its number is unknown from there on. Thread: one at a time. Callbacks come out of
// progress() only, and may call send() and close(). Owns: the sockets, frames until they are sent.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"

namespace karez {

using ConnectionId = std::uint64_t;  // never used twice; 0 is none

struct FrameSocketsCallbacks {
  // from: "127.0.0.1 port 4711". False: it is turned away.
  std::function<bool(ConnectionId, const std::string& from)> on_accept;
  std::function<void(ConnectionId, std::span<const std::byte>)> on_frame;
  // Bytes came, whether they make a frame or not; before its frames. May be empty.
  std::function<void(ConnectionId)> on_bytes = {};
  std::function<void(ConnectionId, const Status&)> on_broken;
};

class FrameSockets {
 public:
  static constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();
  // How long nobody is accepted after there was no descriptor left for one.
  static constexpr auto kAcceptPause = std::chrono::milliseconds(500);

  static Expected<std::unique_ptr<FrameSockets>> create(FrameSocketsCallbacks callbacks,
                                                        std::size_t max_unsent_bytes = kNoLimit);
  ~FrameSockets();
  FrameSockets(const FrameSockets&) = delete;
  FrameSockets& operator=(const FrameSockets&) = delete;

  // Gives the port. progress() must be called every kAcceptPause from then on. Fails:
  // kInvalidArgument if host is no address; kUnavailable.
  Expected<std::uint16_t> listen(const std::string& host, std::uint16_t port);
  // At once; whether the peer is there shows later. Fails: kInvalidArgument, kUnavailable.
  Expected<ConnectionId> connect(const std::string& host, std::uint16_t port);
  void send(ConnectionId connection, std::vector<std::byte> frame);
  // Frames that were not sent yet are lost.
  void close(ConnectionId connection);
  // Of its frames, what the system has not taken yet.
  std::size_t bytes_unsent(ConnectionId connection) const;
  // It is not heard, because it does not listen.
  bool is_held_back(ConnectionId connection) const;
  // Makes descriptor() readable when this one is.
  void watch(int descriptor);

  // Reads and sends what can be without waiting, a bounded amount.
  void progress();
  // Readable when progress() has something to do.
  int descriptor() const { return epoll_; }

 private:
  struct Connection {
    int socket = -1;
    bool is_connected = false;
    bool wants_to_write = false;  // as epoll knows it
    bool is_held_back = false;    // likewise: it is not read
    std::vector<std::byte> input;
    std::size_t input_bytes = 0;  // of it that are filled
    std::deque<std::vector<std::byte>> output;
    std::size_t output_sent = 0;   // bytes of its first frame
    std::size_t output_bytes = 0;  // of all, those of the first that are sent included
  };

  FrameSockets(int epoll, FrameSocketsCallbacks callbacks, std::size_t max_unsent_bytes);
  ConnectionId add(int socket, bool is_connected);
  void accept_all();
  void watch_listener(bool accepts);
  void handle(ConnectionId id, std::uint32_t events);
  void read_from(ConnectionId id);
  // All that are there, but for one that is held back. False: the connection is gone.
  bool take_frames(ConnectionId id);
  // False: the connection is gone, held back, or waits for more bytes.
  bool take_frame(ConnectionId id, std::size_t& begin);
  bool write_to(ConnectionId id, Connection& connection);
  void watch_connection(ConnectionId id, Connection& connection, bool wants_to_write,
                        bool is_held_back);
  void report_broken(ConnectionId id, const Status& status);

  int epoll_;
  FrameSocketsCallbacks callbacks_;
  std::size_t max_unsent_bytes_;
  int listener_ = -1;
  bool accepts_ = true;  // else the listener is not watched, until
  std::chrono::steady_clock::time_point accepts_again_;
  ConnectionId last_id_ = 0;
  std::unordered_map<ConnectionId, Connection> connections_;
};

}  // namespace karez
