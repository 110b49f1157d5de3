// Where a node is: its URL, and the IP addresses that its name had when it was last looked up.
//
// The system's resolver may take 10 to 30 s where DNS does not answer, and cannot be stopped. So a
// look-up has a thread of its own, at most one at a time, that is left behind if its node goes
// first; whoever wants the endpoints gets those that are known. Where a later look-up gets no
// answer they stay: a node is not lost with DNS. That there is no such name is an answer. An IP
// address is not looked up.
// Thread: every call from any thread. Owns: what the look-up's thread needs, with it.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "route/node_url.h"

namespace karez {

using NodeEndpoints = std::vector<boost::asio::ip::tcp::endpoint>;

// Blocks. Fails: kUnavailable: nobody could say; kNotFound: there is no such name.
using NameResolver = std::function<Expected<NodeEndpoints>(const NodeUrl&)>;
// getaddrinfo().
Expected<NodeEndpoints> resolve_with_system(const NodeUrl& url);

class NodeAddress {
 public:
  explicit NodeAddress(NodeUrl url, NameResolver resolver = resolve_with_system);
  ~NodeAddress();
  NodeAddress(const NodeAddress&) = delete;
  NodeAddress& operator=(const NodeAddress&) = delete;

  const NodeUrl& url() const { return url_; }
  // At once. Fails: kUnavailable with the reason if none are known.
  Expected<NodeEndpoints> endpoints() const;

  // Begins a look-up, unless one is under way. on_end: called once when it has ended, in its
  // thread, and must not call this; replaces that of the last call. False: it is an address,
  // nothing is begun or called.
  bool look_up(std::function<void()> on_end);
  // After the return on_end is not called any more.
  void forget_on_end();

 private:
  struct Shared;

  const NodeUrl url_;
  const NameResolver resolver_;
  bool is_address_ = false;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace karez
