// UcxMessenger: frames between this process and its peers, over UCX active messages.
//
// Connections are numbered. A peer that vanishes, and one that breaks UCX's own rules, is reported
// once, and its number is unknown from there on. Nothing blocks but wait().
// Thread: one at a time. Callbacks come out of progress() only, and may call send() and close().
// Owns: the worker, the connections, frames until they are sent.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "remote/ucx_handles.h"

namespace karez {

using ConnectionId = std::uint64_t;  // never used twice; 0 is none

struct UcxMessengerCallbacks {
  // False: it is turned away.
  std::function<bool(ConnectionId)> on_accept;
  std::function<void(ConnectionId, std::span<const std::byte>)> on_frame;
  std::function<void(ConnectionId, const Status&)> on_broken;
};

class UcxMessenger {
 public:
  // exposes_memory: UCX's one-sided operations too, which let peers reach all of this process.
  static Expected<std::unique_ptr<UcxMessenger>> create(const std::string& transports,
                                                        bool exposes_memory,
                                                        UcxMessengerCallbacks callbacks);
  ~UcxMessenger();
  UcxMessenger(const UcxMessenger&) = delete;
  UcxMessenger& operator=(const UcxMessenger&) = delete;

  // Gives the port. Fails: kInvalidArgument if host is no address; kUnavailable.
  Expected<std::uint16_t> listen(const std::string& host, std::uint16_t port);
  // At once; whether the peer is there shows later. Fails: kInvalidArgument, kUnavailable.
  Expected<ConnectionId> connect(const std::string& host, std::uint16_t port);
  void send(ConnectionId connection, std::vector<std::byte> frame);
  // Frames that were not sent yet may be lost.
  void close(ConnectionId connection);
  // Frames of it that UCX has not taken off our hands.
  int frames_unsent(ConnectionId connection) const;

  // Moves everything along until nothing moves any more.
  void progress();
  // Readable when progress() may have something to do, once arm() has said true. False: it has
  // something to do now.
  int descriptor() const { return descriptor_; }
  bool arm();

  const std::shared_ptr<UcxContext>& context() const { return context_; }
  ucp_worker_h worker() const { return worker_->handle(); }
  // nullptr: unknown.
  ucp_ep_h endpoint(ConnectionId connection) const;

 private:
  struct Connection {
    ucp_ep_h endpoint = nullptr;
    int frames_unsent = 0;
  };
  struct Sending;
  struct Arrival {
    ConnectionId connection;
    Status status;
  };

  UcxMessenger(std::shared_ptr<UcxContext> context, std::unique_ptr<UcxWorker> worker,
               int descriptor, UcxMessengerCallbacks callbacks);
  static void connection_requested(ucp_conn_request_h request, void* self);
  static void endpoint_failed(void* self, ucp_ep_h endpoint, ucs_status_t status);
  static ucs_status_t message_came(void* self, const void* header, std::size_t header_bytes,
                                   void* data, std::size_t bytes, const ucp_am_recv_param_t* param);
  static void frame_sent(void* request, ucs_status_t status, void* sending);
  Expected<ConnectionId> add(ucp_ep_params_t params);
  void accept(ucp_conn_request_h request);
  void report_broken();
  void close_endpoint(ucp_ep_h endpoint);
  void finish_closing();

  std::shared_ptr<UcxContext> context_;
  std::unique_ptr<UcxWorker> worker_;
  int descriptor_;
  UcxMessengerCallbacks callbacks_;
  ucp_listener_h listener_ = nullptr;
  ConnectionId last_id_ = 0;
  std::unordered_map<ConnectionId, Connection> connections_;
  std::unordered_map<ucp_ep_h, ConnectionId> ids_;
  std::vector<ucp_conn_request_h> requests_;
  std::vector<Arrival> broken_;
  std::vector<void*> closing_;
};

}  // namespace karez
