// The API's routes on top of an engine: what each one answers.
//
// Works without a model too: until set_backend() the answers are 503 with the loading progress.
// Thread: the HttpHandler calls come from I/O threads; set_backend(), set_progress() and the
// shutdown calls from any thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "engine/engine_client.h"
#include "server/api_routes.h"
#include "server/generation_request.h"
#include "server/http_types.h"
#include "server/request_log.h"
#include "server/server_metrics.h"
#include "server/text_codec.h"

namespace karez {

// What answers come from. Not owned; outlives the service's last request.
struct ServerBackend {
  EngineClient* engine = nullptr;
  const TextCodec* codec = nullptr;
  ModelInfo model;
};

struct ApiOptions {
  AccessRules access;
  bool shared_prefix_cache = false;  // requests of different keys share cached prompts
  // As RunContext::max_queued_bytes.
  std::size_t max_queued_bytes = 256 * 1024;
  std::string log_jsonl;  // a file, "-", or empty: no log
};

class ApiService final : public HttpHandler {
 public:
  ApiService(ApiOptions options, std::unique_ptr<RequestLog> log);
  ~ApiService() override;

  void set_progress(double share, std::string phase);
  void set_backend(ServerBackend backend);
  // New requests for text get 503; running ones go on.
  void stop_taking_requests() { draining_ = true; }
  // Running ones are cancelled and their clients told.
  void cut() { cut_ = true; }
  // Requests for text that are being answered.
  int active() const { return active_; }
  ServerMetrics& metrics() { return metrics_; }

  std::optional<HttpResponse> reject(const HttpRequest& head) override;
  asio::awaitable<void> handle(HttpRequest request, HttpExchange& exchange) override;
  HttpResponse protocol_error(int status, std::string message) override;

 private:
  using Backend = std::shared_ptr<const ServerBackend>;

  Backend backend() const;
  // Counts an answer that was not generated, and logs it. An empty target: it could not be read.
  void note(std::string_view target, int status);
  HttpResponse error_response(const HttpRequest& request, const ApiError& error);
  HttpResponse simple_route(const RouteMatch& match, const HttpRequest& request);
  HttpResponse health(const HttpRequest& request);
  ApiResult<std::string> read_route(const RouteMatch& match, const ServerBackend& backend) const;
  ApiResult<std::string> text_route(Route route, const std::string& body,
                                    const ServerBackend& backend) const;
  asio::awaitable<void> generate(ApiKind kind, HttpRequest request, std::string salt,
                                 HttpExchange& exchange);
  ApiError loading_error() const;
  std::string salt_of(const RouteMatch& match) const;

  const ApiOptions options_;
  std::unique_ptr<RequestLog> log_;
  ServerMetrics metrics_;
  // For work that would hold up an I/O thread: parsing, tokenising, submitting.
  asio::thread_pool workers_{1};
  mutable std::mutex mutex_;
  Backend backend_;
  double progress_ = 0;
  std::string phase_ = "starting";
  std::atomic<bool> draining_{false};
  std::atomic<bool> cut_{false};
  std::atomic<int> active_{0};
};

}  // namespace karez
