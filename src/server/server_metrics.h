// The page of GET /metrics: what the engine counts, and what the server sees of each request.
//
// Names, units and formulas: docs/metrics.md.
// Thread: every call from any thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/engine_client.h"

namespace karez {

class ServerMetrics {
 public:
  ServerMetrics();
  ~ServerMetrics();

  // stats: asked at each read of the page; nothing while no model is loaded. slot_tokens: of a
  // block of the prefix cache.
  void set_engine(std::function<EngineStats()> stats, int block_tokens, int max_num_seqs);
  // connections: open ones now.
  void set_connections(std::function<std::size_t()> connections);

  void observe_first_token(double seconds);
  void observe_token_gap(double seconds);
  void observe_request(double seconds, FinishReason reason);
  void count_response(int http_status);
  void count_slow_reader();

  // Prometheus text format.
  std::string page() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace karez
