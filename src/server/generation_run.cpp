#include "server/generation_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <utility>

#include "server/on_worker.h"

namespace karez {
namespace {

using std::chrono::milliseconds;

// How often a waiting run looks whether its client is still there.
constexpr milliseconds kCheckInterval{100};
// A stream whose first token takes longer begins without it, so that the client sees its header.
constexpr milliseconds kHeaderDelay{1000};
// Comments keep proxies from closing a stream in which nothing happens.
constexpr milliseconds kPingInterval{15'000};

// As nginx logs a request whose client left; no client sees it.
constexpr int kClientClosedRequest = 499;

std::string new_id(ApiKind kind) {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("{}-{:016x}{:016x}", kind == ApiKind::kChat ? "chatcmpl" : "cmpl", random(),
                     random());
}

std::int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

GenerationRun::GenerationRun(GenerationRequest request, RunContext context, HttpExchange& exchange)
    : request_(std::move(request)),
      context_(std::move(context)),
      exchange_(exchange),
      id_(new_id(request_.kind)),
      json_(request_, context_.model, id_, unix_seconds()),
      timer_(std::make_shared<asio::steady_timer>(exchange.executor())),
      last_token_(static_cast<std::size_t>(request_.total_choices()), start_),
      seen_tokens_(static_cast<std::size_t>(request_.total_choices()), 0) {
  is_of_two_nodes_ =
      std::ranges::any_of(request_.prompts, [](const Request& one) { return !!one.kv_transfer; });
  const auto choices = static_cast<std::size_t>(request_.total_choices());
  // A whole answer is taken as fast as it comes, whatever the client does.
  queue_ = std::make_shared<EventQueue>(
      request_.stream ? context_.max_queued_bytes * choices : SIZE_MAX, [this, timer = timer_] {
        asio::post(timer->get_executor(), [this, timer, queue = queue_] {
          timer->cancel();
          // run() may be waiting for the client to take what was written. This run is still there:
          // it closes the queue, on this thread, before it goes.
          if (queue->overflowed()) {
            exchange_.abandon();
          }
        });
      });
  record_.id = id_;
}

GenerationRun::~GenerationRun() {
  queue_->close();
  cancel();
}

void GenerationRun::cancel() {
  for (const RequestId id : std::exchange(running_, {})) {
    context_.engine.cancel(id);
  }
}

ApiResult<void> GenerationRun::submit() {
  for (std::size_t i = 0; i < request_.prompts.size(); ++i) {
    const int prompt = static_cast<int>(i);
    auto id = context_.engine.submit(
        std::move(request_.prompts[i]),
        [queue = queue_, prompt](const GenerationEvent& event) { queue->push(prompt, event); });
    if (!id) {
      ApiError error = ApiError::from_status(id.error());
      error.param = request_.own_name(error.param, i);
      return api_fail(std::move(error));
    }
    running_.push_back(*id);
  }
  return {};
}

asio::awaitable<RequestRecord> GenerationRun::run() {
  // This run is still there when the worker is done, whatever the client does: only this coroutine
  // ends it. Events that come meanwhile wait in the queue.
  const auto work = [this] { return submit(); };
  ApiResult<void> submitted = co_await on_worker(context_.workers, exchange_.executor(), work);
  if (!submitted) {
    co_await end_with(std::move(submitted.error()), "rejected");
  } else {
    co_await follow();
  }
  record_.total_seconds = seconds_since(start_);
  co_return record_;
}

asio::awaitable<std::vector<EventQueue::Item>> GenerationRun::next_events() {
  std::vector<EventQueue::Item> items = queue_->take();
  if (items.empty()) {
    // A wake that comes now runs after the wait has begun, because it runs on this thread.
    boost::system::error_code ignored;
    timer_->expires_after(kCheckInterval);
    co_await timer_->async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    items = queue_->take();
  }
  co_return items;
}

asio::awaitable<void> GenerationRun::follow() {
  while (!failed_ && !json_.all_finished()) {
    const std::vector<EventQueue::Item> items = co_await next_events();
    if (context_.cut.load()) {
      ApiError error = ApiError::from_status(Status(
          StatusCode::kUnavailable, "the server is shutting down; this answer is not complete"));
      co_await end_with(std::move(error), "abort");
      co_return;
    }
    if (queue_->overflowed()) {
      context_.metrics.count_slow_reader();
      ApiError error = ApiError::bad_request(
          408, "the stream was not read fast enough; this answer is not complete", "slow_reader");
      co_await end_with(std::move(error), "abort");
      co_return;
    }
    std::string out;
    for (const EventQueue::Item& item : items) {
      observe(item);
      if (item.event.finished == FinishReason::kError ||
          item.event.finished == FinishReason::kCancelled) {
        const Status status = item.event.error.value_or(
            Status(StatusCode::kUnavailable, "the engine cancelled this request"));
        std::fprintf(stderr, "karez: request %s: %s\n", id_.c_str(), status.to_string().c_str());
        if (!out.empty() && !(co_await send(std::move(out)))) {
          client_left();
          co_return;
        }
        ApiError error = ApiError::from_status(status);
        if (is_of_two_nodes_ && item.event.error && status.code() == StatusCode::kUnavailable) {
          error.code = kTransferFailedCode;
        }
        co_await end_with(std::move(error), std::string(to_string(*item.event.finished)));
        co_return;
      }
      out += json_.take(item.prompt, item.event);
    }
    const bool waited_long =
        request_.stream && !streaming_ && items.empty() && Clock::now() - start_ > kHeaderDelay;
    const bool ping = streaming_ && out.empty() && Clock::now() - last_write_ > kPingInterval;
    if (waited_long || ping) {
      out = ": waiting\n\n";
    }
    if (!out.empty() && !(co_await send(std::move(out)))) {
      client_left();
      co_return;
    }
    if (Clock::now() - last_check_ >= kCheckInterval) {
      last_check_ = Clock::now();
      if (exchange_.client_gone()) {
        client_left();
        co_return;
      }
    }
  }
  running_.clear();
  if (failed_) {
    co_return;
  }
  record_.http_status = 200;
  if (!request_.stream) {
    HttpResponse response;
    response.headers = context_.headers;
    response.body = json_.whole();
    co_await exchange_.respond(std::move(response));
    co_return;
  }
  std::string end = json_.stream_end();
  if (co_await send(std::move(end))) {
    co_await exchange_.end_stream();
  }
}

void GenerationRun::observe(const EventQueue::Item& item) {
  const GenerationEvent& event = item.event;
  const auto index = static_cast<std::size_t>(item.prompt * request_.num_choices + event.choice);
  const auto now = Clock::now();
  const int fresh = event.generated_tokens - seen_tokens_[index];
  if (fresh > 0) {
    if (seen_tokens_[index] == 0) {
      const double seconds = std::chrono::duration<double>(now - start_).count();
      context_.metrics.observe_first_token(seconds);
      if (record_.first_token_seconds <= 0) {
        record_.first_token_seconds = seconds;
      }
    } else {
      const double gap = std::chrono::duration<double>(now - last_token_[index]).count();
      for (int i = 0; i < fresh; ++i) {
        context_.metrics.observe_token_gap(gap / fresh);
      }
    }
    seen_tokens_[index] = event.generated_tokens;
    last_token_[index] = now;
    record_.generated_tokens += fresh;
  }
  record_.queue_seconds = event.timings.queue_seconds;
  if (event.finished) {
    context_.metrics.observe_request(seconds_since(start_), *event.finished);
    record_.finish_reason = to_string(*event.finished);
    if (event.choice == 0) {
      record_.prompt_tokens += event.prompt_tokens;
      record_.cached_tokens += event.cached_tokens;
    }
  }
}

void GenerationRun::client_left() {
  failed_ = true;
  exchange_.close_after();  // its answer may lack its end: nothing may follow on the connection
  if (queue_->overflowed()) {
    context_.metrics.count_slow_reader();
  }
  record_.finish_reason = to_string(FinishReason::kCancelled);
  record_.http_status = kClientClosedRequest;
  context_.metrics.observe_request(seconds_since(start_), FinishReason::kCancelled);
  cancel();
}

asio::awaitable<bool> GenerationRun::send(std::string data) {
  if (!streaming_) {
    streaming_ = true;
    record_.http_status = 200;
    HttpResponse header;
    header.content_type = "text/event-stream; charset=utf-8";
    header.headers = context_.headers;
    const bool begun = co_await exchange_.begin_stream(std::move(header));
    if (!begun) {
      co_return false;
    }
  }
  last_write_ = Clock::now();
  const bool written = co_await exchange_.write(std::move(data));
  co_return written;
}

asio::awaitable<void> GenerationRun::end_with(ApiError error, std::string reason) {
  failed_ = true;
  cancel();
  record_.finish_reason = std::move(reason);
  if (streaming_) {
    exchange_.close_after();
    std::string data = sse(error.to_json());
    if (co_await send(std::move(data))) {
      co_await exchange_.end_stream();
    }
    co_return;
  }
  record_.http_status = error.http_status;
  HttpResponse response;
  response.status = error.http_status;
  response.body = error.to_json();
  response.headers = context_.headers;
  if (error.retry_after_seconds) {
    response.headers.emplace_back("Retry-After", std::to_string(*error.retry_after_seconds));
  }
  co_await exchange_.respond(std::move(response));
}

}  // namespace karez
