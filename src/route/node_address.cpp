#include "route/node_address.h"

#include <fmt/format.h>
#include <netdb.h>

#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/ip_address.h"

namespace karez {
namespace {

using boost::asio::ip::tcp;

tcp::endpoint endpoint_of(const sockaddr* address, std::size_t size) {
  tcp::endpoint endpoint;
  endpoint.resize(size);
  std::memcpy(endpoint.data(), address, size);
  return endpoint;
}

}  // namespace

Expected<NodeEndpoints> resolve_with_system(const NodeUrl& url) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(url.host.c_str(), std::to_string(url.port).c_str(), &hints, &list);
  if (error != 0) {
    const bool is_answer = error == EAI_NONAME || error == EAI_NODATA;
    return fail(is_answer ? StatusCode::kNotFound : StatusCode::kUnavailable,
                fmt::format("'{}' has no address: {}", url.host, gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  NodeEndpoints endpoints;
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    if (one->ai_family == AF_INET || one->ai_family == AF_INET6) {
      endpoints.push_back(endpoint_of(one->ai_addr, one->ai_addrlen));
    }
  }
  return endpoints;
}

struct NodeAddress::Shared {
  std::mutex mutex;
  Expected<NodeEndpoints> known = fail(StatusCode::kUnavailable, "its name is not looked up yet");
  bool is_looking_up = false;
  std::function<void()> on_end;

  void end(Expected<NodeEndpoints> found) {
    const std::lock_guard lock(mutex);
    is_looking_up = false;
    if (found || found.error().code() != StatusCode::kUnavailable || !known) {
      known = std::move(found);
    }
    if (const auto told = std::exchange(on_end, {})) {
      told();
    }
  }
};

NodeAddress::NodeAddress(NodeUrl url, NameResolver resolver)
    : url_(std::move(url)), resolver_(std::move(resolver)), shared_(std::make_shared<Shared>()) {
  if (const auto address = parse_ip_address(url_.host)) {
    is_address_ = true;
    const SocketAddress here = address->to_sockaddr(static_cast<std::uint16_t>(url_.port));
    shared_->known = NodeEndpoints{endpoint_of(here.get(), here.size)};
  }
}

NodeAddress::~NodeAddress() { forget_on_end(); }

Expected<NodeEndpoints> NodeAddress::endpoints() const {
  const std::lock_guard lock(shared_->mutex);
  if (!shared_->known) {
    return fail(StatusCode::kUnavailable, shared_->known.error().message());
  }
  return *shared_->known;
}

bool NodeAddress::look_up(std::function<void()> on_end) {
  if (is_address_) {
    return false;
  }
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->on_end = std::move(on_end);
    if (std::exchange(shared_->is_looking_up, true)) {
      return true;
    }
  }
  try {
    std::thread([shared = shared_, url = url_, resolver = resolver_] {
      shared->end(resolver(url));
    }).detach();
  } catch (const std::system_error& error) {
    shared_->end(fail(StatusCode::kUnavailable,
                      fmt::format("'{}' was not looked up: {}", url_.host, error.what())));
  }
  return true;
}

void NodeAddress::forget_on_end() {
  const std::lock_guard lock(shared_->mutex);
  shared_->on_end = {};
}

}  // namespace karez
