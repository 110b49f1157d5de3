// One HTTP request for text on its way through the engine: submit, follow, write, cancel.
//
// Thread: run() is a coroutine of the connection's I/O thread; submitting runs on a worker, while
// the coroutine waits for it. The engine's callbacks come from the engine thread and only reach the
// event queue.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine_client.h"
#include "server/asio.h"
#include "server/event_queue.h"
#include "server/generation_json.h"
#include "server/http_types.h"
#include "server/request_log.h"
#include "server/server_metrics.h"

namespace karez {

// What all runs of a server share. Outlives them.
struct RunContext {
  EngineClient& engine;
  const ModelInfo& model;
  ServerMetrics& metrics;
  // Set when the server must end now: runs are cut and their clients told.
  const std::atomic<bool>& cut;
  // For what would hold up an I/O thread.
  asio::thread_pool& workers;
  // Of events that wait for a client that reads slowly, for each choice.
  std::size_t max_queued_bytes = 256 * 1024;
  // For every response, streams included.
  std::vector<std::pair<std::string, std::string>> headers;
};

class GenerationRun {
 public:
  GenerationRun(GenerationRequest request, RunContext context, HttpExchange& exchange);
  // Cancels what is still running.
  ~GenerationRun();

  // Answers the exchange. The record has what the log line needs.
  asio::awaitable<RequestRecord> run();

 private:
  using Clock = std::chrono::steady_clock;

  // On a worker: the engine reads grammars in submit().
  ApiResult<void> submit();
  asio::awaitable<void> follow();
  // Takes what the engine has sent; waits for it, but not longer than a tenth of a second.
  asio::awaitable<std::vector<EventQueue::Item>> next_events();
  void observe(const EventQueue::Item& item);
  // Ends the exchange with an error, as a status or inside the stream.
  asio::awaitable<void> end_with(ApiError error, std::string reason);
  asio::awaitable<bool> send(std::string data);
  void client_left();
  void cancel();

  GenerationRequest request_;
  RunContext context_;
  HttpExchange& exchange_;
  std::string id_;
  GenerationJson json_;
  std::shared_ptr<asio::steady_timer> timer_;
  std::shared_ptr<EventQueue> queue_;
  std::vector<RequestId> running_;
  RequestRecord record_;
  const Clock::time_point start_ = Clock::now();
  std::vector<Clock::time_point> last_token_;  // of each choice
  std::vector<int> seen_tokens_;               // of each choice
  Clock::time_point last_check_ = start_;
  Clock::time_point last_write_ = start_;
  bool is_of_two_nodes_ = false;  // KV comes from another one, or is for one
  bool streaming_ = false;        // the header is sent
  bool failed_ = false;           // nothing more is sent
};

}  // namespace karez
