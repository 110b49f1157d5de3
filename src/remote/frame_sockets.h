// FrameSockets: frames between this process and its peers, over TCP.
//
// Plain sockets and not UCX: UCX 1.13's listener aborts the process that gets bytes it does not
// expect, and everything here may come from a stranger. A buffer grows as bytes come, not as a
// length promises.
// A connection that ends, and one whose bytes are no frames, is reported once; its number is
// unknown from there on. Thread: one at a time. Callbacks come out of progress() only, and may call
// send() and close(). Owns: the sockets, frames until they are sent.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
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
  static Expected<std::unique_ptr<FrameSockets>> create(FrameSocketsCallbacks callbacks);
  ~FrameSockets();
  FrameSockets(const FrameSockets&) = delete;
  FrameSockets& operator=(const FrameSockets&) = delete;

  // Gives the port. Fails: kInvalidArgument if host is no address; kUnavailable.
  Expected<std::uint16_t> listen(const std::string& host, std::uint16_t port);
  // At once; whether the peer is there shows later. Fails: kInvalidArgument, kUnavailable.
  Expected<ConnectionId> connect(const std::string& host, std::uint16_t port);
  void send(ConnectionId connection, std::vector<std::byte> frame);
  // Frames that were not sent yet are lost.
  void close(ConnectionId connection);
  // Frames of it that the system has not taken yet.
  int frames_unsent(ConnectionId connection) const;
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
    std::vector<std::byte> input;
    std::size_t input_bytes = 0;  // of it that are filled
    std::deque<std::vector<std::byte>> output;
    std::size_t output_sent = 0;  // bytes of its first frame
  };

  FrameSockets(int epoll, FrameSocketsCallbacks callbacks);
  ConnectionId add(int socket, bool is_connected);
  void accept_all();
  void handle(ConnectionId id, std::uint32_t events);
  void read_from(ConnectionId id);
  // False: the connection is gone, or waits for more bytes.
  bool take_frame(ConnectionId id, std::size_t& begin);
  bool write_to(ConnectionId id, Connection& connection);
  void watch_writes(ConnectionId id, Connection& connection, bool wants_to_write);
  void report_broken(ConnectionId id, const Status& status);

  int epoll_;
  FrameSocketsCallbacks callbacks_;
  int listener_ = -1;
  ConnectionId last_id_ = 0;
  std::unordered_map<ConnectionId, Connection> connections_;
};

}  // namespace karez
