// Asks every node for GET /health, again and again, and tells the table what came of it.
//
// Also looks up the nodes' names, once before each check, for requests as well. A look-up that
// takes longer than the timeout is not waited for: the check goes on with the addresses that are
// known, and without any the node is out. Nor does the destructor wait for it.
// Thread: one of its own; start() and the destructor from one thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "route/node_table.h"

namespace karez {

struct HealthCheckOptions {
  std::chrono::milliseconds interval{1000};
  std::chrono::milliseconds timeout{2000};  // for the name, to connect, for each wait after
};

class HealthChecker {
 public:
  // nodes: must outlive the checker. on_news: what changed, in its thread.
  HealthChecker(const HealthCheckOptions& options, NodeTable& nodes,
                std::function<void(NodeId node, const NodeState& state)> on_news);
  ~HealthChecker();
  HealthChecker(const HealthChecker&) = delete;
  HealthChecker& operator=(const HealthChecker&) = delete;

  // Returns when every node was asked once, or after this time.
  void wait_for_first_round(std::chrono::milliseconds limit);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace karez
