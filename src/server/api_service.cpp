#include "server/api_service.h"

#include <openssl/evp.h>

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/hex.h"
#include "server/generation_run.h"
#include "server/on_worker.h"
#include "server/page.h"
#include "server/text_routes.h"

namespace karez {
namespace {

constexpr int kLoadingRetrySeconds = 2;

std::string sha256_hex(const std::string& text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  KAREZ_CHECK(
      EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr) == 1,
      "OpenSSL has no SHA-256");
  return to_hex(std::as_bytes(std::span(digest).first(size)));
}

}  // namespace

ApiService::ApiService(ApiOptions options, std::unique_ptr<RequestLog> log)
    : options_(std::move(options)), log_(std::move(log)) {}
ApiService::~ApiService() { workers_.join(); }

void ApiService::set_progress(double share, std::string phase) {
  const std::lock_guard lock(mutex_);
  progress_ = share;
  phase_ = std::move(phase);
}

void ApiService::set_backend(ServerBackend backend) {
  metrics_.set_engine([engine = backend.engine] { return engine->stats(); },
                      backend.model.block_tokens, backend.model.max_num_seqs);
  const std::lock_guard lock(mutex_);
  backend_ = std::make_shared<const ServerBackend>(std::move(backend));
}

ApiService::Backend ApiService::backend() const {
  const std::lock_guard lock(mutex_);
  return backend_;
}

ApiError ApiService::loading_error() const {
  ApiError error = ApiError::from_status(Status(StatusCode::kUnavailable, "Loading model"));
  error.code = "loading";
  error.retry_after_seconds = kLoadingRetrySeconds;
  return error;
}

std::string ApiService::salt_of(const RouteMatch& match) const {
  if (options_.shared_prefix_cache || match.key_index < 0) {
    return {};
  }
  // Of fixed length, so that no client salt can look like another key's.
  return "key:" + sha256_hex(options_.access.api_keys[static_cast<std::size_t>(match.key_index)]) +
         ":";
}

HttpResponse ApiService::error_response(const HttpRequest& request, const ApiError& error) {
  HttpResponse response = make_error_response(request, error, options_.access);
  note(request.target, error.http_status);
  return response;
}

void ApiService::note(std::string_view target, int status) {
  metrics_.count_response(status);
  if (log_ != nullptr) {
    RequestRecord record;
    record.route = route_name(target);
    record.http_status = status;
    record.finish_reason = status >= 400 ? "rejected" : "";
    log_->write(record);
  }
}

HttpResponse ApiService::protocol_error(int status, std::string message) {
  note("", status);
  return make_protocol_error(status, std::move(message));
}

std::optional<HttpResponse> ApiService::reject(const HttpRequest& head) {
  const auto match = match_route(head, options_.access);
  if (!match) {
    return error_response(head, match.error());
  }
  return std::nullopt;
}

HttpResponse ApiService::health(const HttpRequest& request) {
  HttpResponse response;
  response.headers = cors_headers(request, options_.access);
  const Backend backend_now = backend();
  if (backend_now != nullptr && !draining_) {
    response.body = answer_health(backend_now->engine->stats());
    return response;
  }
  response.status = 503;
  response.headers.emplace_back("Retry-After", std::to_string(kLoadingRetrySeconds));
  const bool loading = backend() == nullptr;
  const std::lock_guard lock(mutex_);
  const nlohmann::ordered_json body = {{"error",
                                        {{"code", 503},
                                         {"message", loading ? "Loading model" : "Shutting down"},
                                         {"type", "unavailable_error"}}},
                                       {"progress", loading ? progress_ : 1.0},
                                       {"phase", loading ? phase_ : "shutting down"}};
  response.body = body.dump();
  return response;
}

HttpResponse ApiService::simple_route(const RouteMatch& match, const HttpRequest& request) {
  HttpResponse response;
  response.headers = cors_headers(request, options_.access);
  switch (match.route) {
    case Route::kPreflight:
      response.status = 204;
      return response;
    case Route::kPage:
      response.content_type = "text/html; charset=utf-8";
      response.body = page_html();
      // Nothing but this file and this server: no other host, no frame around it.
      response.headers.emplace_back(
          "Content-Security-Policy",
          "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
          "connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'; "
          "form-action 'none'");
      response.headers.emplace_back("Referrer-Policy", "no-referrer");
      return response;
    case Route::kMetrics:
      response.content_type = "text/plain; version=0.0.4; charset=utf-8";
      response.body = metrics_.page();
      return response;
    default:
      return health(request);
  }
}

ApiResult<std::string> ApiService::read_route(const RouteMatch& match,
                                              const ServerBackend& backend) const {
  switch (match.route) {
    case Route::kModels:
      return answer_models(backend.model, backend.codec->vocab_size());
    case Route::kModel:
      if (match.argument != backend.model.name) {
        return api_fail(
            ApiError::bad_request(404, "this server has no such model", "model_not_found"));
      }
      return answer_model(backend.model, backend.codec->vocab_size());
    case Route::kStats:
      return answer_stats(backend.engine->stats(), backend.model);
    case Route::kKvMap:
      return answer_kv_map(backend.engine->kv_map().get());
    default:
      return answer_props(backend.model);
  }
}

ApiResult<std::string> ApiService::text_route(Route route, const std::string& body,
                                              const ServerBackend& backend) const {
  switch (route) {
    case Route::kTokenize:
      return answer_tokenize(body, *backend.codec, backend.model);
    case Route::kDetokenize:
      return answer_detokenize(body, *backend.codec, backend.model);
    default:
      return answer_apply_template(body, *backend.codec, backend.model);
  }
}

asio::awaitable<void> ApiService::handle(HttpRequest request, HttpExchange& exchange) {
  const auto match = match_route(request, options_.access);
  if (!match) {
    HttpResponse rejection = error_response(request, match.error());
    co_await exchange.respond(std::move(rejection));
    co_return;
  }
  const Route route = match->route;
  if (route == Route::kPreflight || route == Route::kPage || route == Route::kMetrics ||
      route == Route::kHealth) {
    HttpResponse response = simple_route(*match, request);
    note(request.target, response.status);
    co_await exchange.respond(std::move(response));
    co_return;
  }
  const Backend backend_now = backend();
  if (backend_now == nullptr) {
    HttpResponse response = error_response(request, loading_error());
    co_await exchange.respond(std::move(response));
    co_return;
  }
  if (route == Route::kChatCompletions || route == Route::kCompletions) {
    const ApiKind kind = route == Route::kChatCompletions ? ApiKind::kChat : ApiKind::kCompletion;
    std::string salt = salt_of(*match);
    co_await generate(kind, std::move(request), std::move(salt), exchange);
    co_return;
  }
  ApiResult<std::string> answer = std::string();
  if (route == Route::kTokenize || route == Route::kDetokenize || route == Route::kApplyTemplate) {
    const auto work = [this, route, body = std::move(request.body), backend_now] {
      return text_route(route, body, *backend_now);
    };
    answer = co_await on_worker(workers_, exchange.executor(), work);
  } else {
    answer = read_route(*match, *backend_now);
  }
  if (!answer) {
    HttpResponse response = error_response(request, answer.error());
    co_await exchange.respond(std::move(response));
    co_return;
  }
  HttpResponse response;
  response.headers = cors_headers(request, options_.access);
  response.body = std::move(*answer);
  note(request.target, response.status);
  co_await exchange.respond(std::move(response));
}

asio::awaitable<void> ApiService::generate(ApiKind kind, HttpRequest request, std::string salt,
                                           HttpExchange& exchange) {
  const ActiveCount counted(active_);
  const Backend backend_now = backend();
  if (draining_) {
    HttpResponse response = error_response(
        request,
        ApiError::from_status(Status(StatusCode::kUnavailable, "the server is shutting down")));
    co_await exchange.respond(std::move(response));
    co_return;
  }
  const auto work = [kind, backend_now, key_salt = std::move(salt),
                     body = std::move(request.body)]() -> ApiResult<GenerationRequest> {
    // A long text or a grammar takes this worker time, for which all other requests wait.
    if (auto room = backend_now->engine->check_queue(); !room) {
      return api_fail(ApiError::from_status(room.error()));
    }
    auto json = parse_json_object(body);
    if (!json) {
      return api_fail(std::move(json.error()));
    }
    return parse_generation_request(kind, *json, key_salt, backend_now->model, *backend_now->codec);
  };
  ApiResult<GenerationRequest> parsed = co_await on_worker(workers_, exchange.executor(), work);
  if (!parsed) {
    HttpResponse response = error_response(request, parsed.error());
    co_await exchange.respond(std::move(response));
    co_return;
  }
  const RunContext context{*backend_now->engine,
                           backend_now->model,
                           metrics_,
                           cut_,
                           workers_,
                           options_.max_queued_bytes,
                           cors_headers(request, options_.access)};
  GenerationRun run(std::move(*parsed), context, exchange);
  RequestRecord record = co_await run.run();
  metrics_.count_response(record.http_status);
  if (log_ != nullptr) {
    record.route = route_name(request.target);
    log_->write(record);
  }
}

}  // namespace karez
