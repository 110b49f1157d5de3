#include "remote/ucx_messenger.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "remote/wire_frame.h"

namespace karez {

namespace {

constexpr unsigned kMessageId = 1;
constexpr auto kCloseTime = std::chrono::milliseconds(500);

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;
};

Expected<SocketAddress> parse_address(const std::string& host, std::uint16_t port) {
  SocketAddress address;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    address.size = sizeof *v4;
  } else if (inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    address.size = sizeof *v6;
  } else {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("a peer's host is '{}', allowed are IPv4 and IPv6 addresses", host));
  }
  return address;
}

ucp_request_param_t close_now() {
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  return param;
}

}  // namespace

struct UcxMessenger::Sending {
  UcxMessenger* messenger;
  ConnectionId connection;
  std::vector<std::byte> frame;
};

Expected<std::unique_ptr<UcxMessenger>> UcxMessenger::create(const std::string& transports,
                                                             bool exposes_memory,
                                                             UcxMessengerCallbacks callbacks) {
  std::uint64_t features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  if (exposes_memory) {
    features |= UCP_FEATURE_RMA;
  }
  Expected<std::shared_ptr<UcxContext>> context = UcxContext::create(features, transports);
  if (!context) {
    return fail(context.error());
  }
  Expected<std::unique_ptr<UcxWorker>> worker = UcxWorker::create(*context);
  if (!worker) {
    return fail(worker.error());
  }
  int descriptor = -1;
  ucs_status_t status = ucp_worker_get_efd((*worker)->handle(), &descriptor);
  if (status != UCS_OK) {
    return fail(ucx_failure("a worker cannot be waited for", status));
  }
  std::unique_ptr<UcxMessenger> messenger(
      new UcxMessenger(*context, std::move(*worker), descriptor, std::move(callbacks)));
  ucp_am_handler_param_t handler = {};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessageId;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = message_came;
  handler.arg = messenger.get();
  status = ucp_worker_set_am_recv_handler(messenger->worker(), &handler);
  if (status != UCS_OK) {
    return fail(ucx_failure("a worker takes no messages", status));
  }
  return messenger;
}

UcxMessenger::UcxMessenger(std::shared_ptr<UcxContext> context, std::unique_ptr<UcxWorker> worker,
                           int descriptor, UcxMessengerCallbacks callbacks)
    : context_(std::move(context)),
      worker_(std::move(worker)),
      descriptor_(descriptor),
      callbacks_(std::move(callbacks)) {}

UcxMessenger::~UcxMessenger() {
  callbacks_ = {};
  for (const ucp_conn_request_h request : std::exchange(requests_, {})) {
    ucp_listener_reject(listener_, request);
  }
  if (listener_ != nullptr) {
    ucp_listener_destroy(listener_);
  }
  while (!connections_.empty()) {
    close(connections_.begin()->first);
  }
  const auto end = std::chrono::steady_clock::now() + kCloseTime;
  while (!closing_.empty() && std::chrono::steady_clock::now() < end) {
    progress();
  }
}

Expected<std::uint16_t> UcxMessenger::listen(const std::string& host, std::uint16_t port) {
  const Expected<SocketAddress> address = parse_address(host, port);
  if (!address) {
    return fail(address.error());
  }
  ucp_listener_params_t params = {};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&address->storage);
  params.sockaddr.addrlen = address->size;
  params.conn_handler.cb = connection_requested;
  params.conn_handler.arg = this;
  ucs_status_t status = ucp_listener_create(worker(), &params, &listener_);
  if (status != UCS_OK) {
    listener_ = nullptr;
    return fail(StatusCode::kUnavailable, fmt::format("cannot listen at {} port {}: UCX says: {}",
                                                      host, port, ucs_status_string(status)));
  }
  ucp_listener_attr_t attributes = {};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  status = ucp_listener_query(listener_, &attributes);
  if (status != UCS_OK) {
    return fail(ucx_failure("a listener does not know its port", status));
  }
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&attributes.sockaddr);
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&attributes.sockaddr);
  return ntohs(attributes.sockaddr.ss_family == AF_INET6 ? v6->sin6_port : v4->sin_port);
}

Expected<ConnectionId> UcxMessenger::connect(const std::string& host, std::uint16_t port) {
  const Expected<SocketAddress> address = parse_address(host, port);
  if (!address) {
    return fail(address.error());
  }
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&address->storage);
  params.sockaddr.addrlen = address->size;
  return add(params);
}

Expected<ConnectionId> UcxMessenger::add(ucp_ep_params_t params) {
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = endpoint_failed;
  params.err_handler.arg = this;
  ucp_ep_h endpoint = nullptr;
  const ucs_status_t status = ucp_ep_create(worker(), &params, &endpoint);
  if (status != UCS_OK) {
    return fail(StatusCode::kUnavailable,
                fmt::format("no connection: UCX says: {}", ucs_status_string(status)));
  }
  const ConnectionId id = ++last_id_;
  connections_[id].endpoint = endpoint;
  ids_[endpoint] = id;
  return id;
}

void UcxMessenger::accept(ucp_conn_request_h request) {
  const ConnectionId next = last_id_ + 1;
  if (!callbacks_.on_accept || !callbacks_.on_accept(next)) {
    ucp_listener_reject(listener_, request);
    return;
  }
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  const Expected<ConnectionId> id = add(params);
  if (!id) {
    last_id_ = next;
    callbacks_.on_broken(next, id.error());
  }
}

void UcxMessenger::send(ConnectionId connection, std::vector<std::byte> frame) {
  const auto found = connections_.find(connection);
  if (found == connections_.end()) {
    return;
  }
  auto sending = std::make_unique<Sending>(Sending{this, connection, std::move(frame)});
  ucp_request_param_t param = {};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  // The peer learns from REPLY whose message it is. A rendezvous would be one more round trip.
  param.flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = frame_sent;
  param.user_data = sending.get();
  ++found->second.frames_unsent;
  void* request = ucp_am_send_nbx(found->second.endpoint, kMessageId, nullptr, 0,
                                  sending->frame.data(), sending->frame.size(), &param);
  if (UCS_PTR_IS_PTR(request)) {
    static_cast<void>(sending.release());  // frame_sent() has it now
    return;
  }
  --found->second.frames_unsent;
  if (UCS_PTR_IS_ERR(request)) {
    broken_.push_back({connection, ucx_failure("a message was not sent", UCS_PTR_STATUS(request))});
  }
}

void UcxMessenger::frame_sent(void* request, ucs_status_t status, void* sending) {
  const std::unique_ptr<Sending> sent(static_cast<Sending*>(sending));
  UcxMessenger& self = *sent->messenger;
  const auto found = self.connections_.find(sent->connection);
  if (found != self.connections_.end()) {
    --found->second.frames_unsent;
    if (status != UCS_OK) {
      self.broken_.push_back({sent->connection, ucx_failure("a message was not sent", status)});
    }
  }
  ucp_request_free(request);
}

void UcxMessenger::close(ConnectionId connection) {
  const auto found = connections_.find(connection);
  if (found == connections_.end()) {
    return;
  }
  const ucp_ep_h endpoint = found->second.endpoint;
  ids_.erase(endpoint);
  connections_.erase(found);
  close_endpoint(endpoint);
}

void UcxMessenger::close_endpoint(ucp_ep_h endpoint) {
  const ucp_request_param_t param = close_now();
  void* request = ucp_ep_close_nbx(endpoint, &param);
  if (UCS_PTR_IS_PTR(request)) {
    closing_.push_back(request);
  }
}

void UcxMessenger::finish_closing() {
  std::erase_if(closing_, [](void* request) {
    if (ucp_request_check_status(request) == UCS_INPROGRESS) {
      return false;
    }
    ucp_request_free(request);
    return true;
  });
}

int UcxMessenger::frames_unsent(ConnectionId connection) const {
  const auto found = connections_.find(connection);
  return found == connections_.end() ? 0 : found->second.frames_unsent;
}

ucp_ep_h UcxMessenger::endpoint(ConnectionId connection) const {
  const auto found = connections_.find(connection);
  return found == connections_.end() ? nullptr : found->second.endpoint;
}

void UcxMessenger::progress() {
  while (ucp_worker_progress(worker()) != 0) {
  }
  // UCX's callbacks only take notes: endpoints are not made or closed inside them.
  for (const ucp_conn_request_h request : std::exchange(requests_, {})) {
    accept(request);
  }
  report_broken();
  finish_closing();
}

void UcxMessenger::report_broken() {
  for (const Arrival& arrival : std::exchange(broken_, {})) {
    if (connections_.contains(arrival.connection)) {
      close(arrival.connection);
      if (callbacks_.on_broken) {
        callbacks_.on_broken(arrival.connection, arrival.status);
      }
    }
  }
}

bool UcxMessenger::arm() {
  return requests_.empty() && broken_.empty() && closing_.empty() &&
         ucp_worker_arm(worker()) == UCS_OK;
}

void UcxMessenger::connection_requested(ucp_conn_request_h request, void* self) {
  static_cast<UcxMessenger*>(self)->requests_.push_back(request);
}

void UcxMessenger::endpoint_failed(void* self, ucp_ep_h endpoint, ucs_status_t status) {
  auto* messenger = static_cast<UcxMessenger*>(self);
  const auto id = messenger->ids_.find(endpoint);
  if (id != messenger->ids_.end()) {
    messenger->broken_.push_back(
        {id->second,
         {StatusCode::kUnavailable,
          fmt::format("the peer is gone: UCX says: {}", ucs_status_string(status))}});
  }
}

ucs_status_t UcxMessenger::message_came(void* self, const void* /*header*/,
                                        std::size_t /*header_bytes*/, void* data, std::size_t bytes,
                                        const ucp_am_recv_param_t* param) {
  auto* messenger = static_cast<UcxMessenger*>(self);
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0) {
    return UCS_OK;  // nobody to answer
  }
  const auto id = messenger->ids_.find(param->reply_ep);
  if (id == messenger->ids_.end()) {
    return UCS_OK;
  }
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0 ||
      bytes > kWireHeaderBytes + kMaxWireBodyBytes) {
    messenger->broken_.push_back(
        {id->second,
         {StatusCode::kCorruption, fmt::format("a message of {} bytes, allowed are {}", bytes,
                                               kWireHeaderBytes + kMaxWireBodyBytes)}});
    return UCS_OK;
  }
  if (messenger->callbacks_.on_frame) {
    messenger->callbacks_.on_frame(id->second, {static_cast<const std::byte*>(data), bytes});
  }
  return UCS_OK;
}

}  // namespace karez
