#include "support/server/fake_engine.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "sampling/stop_sequences.h"
#include "sampling/utf8.h"

namespace karez {
namespace {

constexpr int kSlotTokens = 16;

struct Answer {
  std::string text;
  std::size_t next = 0;
  Utf8Assembler assembler;
  StopSequences stops;
  int generated = 0;
  bool finished = false;
  std::vector<GeneratedToken> held;  // tokens whose text is still held back
};

}  // namespace

struct FakeEngine::Job {
  Request request;
  Callback callback;
  std::string prompt_text;
  int prefill_left = 0;
  std::vector<Answer> answers;
  bool cancelled = false;
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  std::int64_t slots() const {
    std::int64_t tokens = static_cast<std::int64_t>(request.prompt.size());
    for (const Answer& answer : answers) {
      tokens += answer.generated;
    }
    return (tokens + kSlotTokens - 1) / kSlotTokens;
  }
};

FakeEngine::FakeEngine(const FakeEngineOptions& options) : options_(options) {
  stats_.slots_total = 1'000'000;
  stats_.slot_bytes = 4096;
  thread_ = std::thread([this] { loop(); });
}

FakeEngine::~FakeEngine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

std::string FakeEngine::answer(const std::string& prompt_text) {
  if (prompt_text.find("<emoji>") != std::string::npos) {
    return "\xF0\x9F\x98\x80\xF0\x9F\x98\x81\xF0\x9F\x98\x82";
  }
  return "The prompt has " + std::to_string(prompt_text.size()) + " bytes. ABCDEFGHIJKLMN.";
}

KvTransfer FakeEngine::produced() {
  KvTransfer transfer;
  transfer.remote_host = "127.0.0.1";
  transfer.remote_port = 5600;
  transfer.remote_engine_id = "fake-engine";
  transfer.remote_request_id = "0123456789abcdef0123456789abcdef";
  return transfer;
}

Expected<RequestId> FakeEngine::submit(Request request, Callback callback) {
  auto job = std::make_unique<Job>();
  for (const TokenId token : request.prompt) {
    if (token < 256) {
      job->prompt_text += static_cast<char>(token);
    }
  }
  for (int i = 0; i < request.num_choices; ++i) {
    job->answers.push_back(
        {answer(job->prompt_text), 0, {}, StopSequences(request.sampling.stop), 0, false, {}});
  }
  job->prefill_left = static_cast<int>(request.prompt.size());
  const std::lock_guard lock(mutex_);
  if (auto room = room_in_queue(); !room) {
    return fail(std::move(room.error()));
  }
  request.id = next_id_++;
  last_request_ = request;
  job->request = std::move(request);
  job->callback = std::move(callback);
  const RequestId id = job->request.id;
  waiting_.push_back(std::move(job));
  wake_.notify_all();
  return id;
}

Expected<void> FakeEngine::check_queue() const {
  const std::lock_guard lock(mutex_);
  return room_in_queue();
}

Expected<void> FakeEngine::room_in_queue() const {
  if (static_cast<int>(waiting_.size()) >= options_.max_waiting) {
    return fail(StatusCode::kUnavailable, "the queue is full");
  }
  return {};
}

void FakeEngine::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  for (auto* list : {&waiting_, &running_}) {
    for (const auto& job : *list) {
      if (job->request.id == id && !job->cancelled) {
        job->cancelled = true;
        ++cancels_;
      }
    }
  }
  wake_.notify_all();
}

EngineStats FakeEngine::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  stats.requests_running = static_cast<int>(running_.size());
  stats.requests_waiting = static_cast<int>(waiting_.size());
  for (const auto& job : running_) {
    stats.slots_used += job->slots();
  }
  return stats;
}

Request FakeEngine::last_request() const {
  const std::lock_guard lock(mutex_);
  return last_request_;
}

void FakeEngine::pause(bool paused) {
  const std::lock_guard lock(mutex_);
  paused_ = paused;
  wake_.notify_all();
}

void FakeEngine::loop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    step_all();
    if (waiting_.empty() && running_.empty()) {
      wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    } else {
      wake_.wait_for(lock, options_.step, [this] { return stopping_; });
    }
  }
}

// Callbacks are called under the lock: that they do not call back is part of the interface.
void FakeEngine::step_all() {
  for (auto* list : {&waiting_, &running_}) {
    list->remove_if([](const std::unique_ptr<Job>& job) {
      if (job->cancelled) {
        GenerationEvent event;
        event.finished = FinishReason::kCancelled;
        event.prompt_tokens = static_cast<int>(job->request.prompt.size());
        job->callback(event);
      }
      return job->cancelled;
    });
  }
  if (paused_) {
    return;
  }
  while (!waiting_.empty() && static_cast<int>(running_.size()) < options_.max_running) {
    stats_.prompt_tokens += static_cast<std::int64_t>(waiting_.front()->request.prompt.size());
    stats_.prefix_cache_queries_tokens +=
        static_cast<std::int64_t>(waiting_.front()->request.prompt.size());
    running_.splice(running_.end(), waiting_, waiting_.begin());
  }
  ++stats_.steps;
  running_.remove_if([this](const std::unique_ptr<Job>& job) { return step(*job); });
}

bool FakeEngine::step(Job& job) {
  if (job.prefill_left > 0) {
    job.prefill_left -= options_.prefill_tokens_per_step;
    return false;
  }
  const bool forever = job.prompt_text.find("<forever>") != std::string::npos;
  const bool fails = job.prompt_text.find("<fail>") != std::string::npos;
  bool all_finished = true;
  for (std::size_t i = 0; i < job.answers.size(); ++i) {
    Answer& answer = job.answers[i];
    if (answer.finished) {
      continue;
    }
    GenerationEvent event;
    event.choice = static_cast<int>(i);
    event.prompt_tokens = static_cast<int>(job.request.prompt.size());
    if (fails && answer.generated == 3) {
      event.finished = FinishReason::kError;
      event.error = Status(StatusCode::kInternal, "the fake was told to fail");
      job.callback(event);
      return true;
    }
    const char c = answer.text[answer.next++ % answer.text.size()];
    ++answer.generated;
    ++stats_.generated_tokens;
    event.text = answer.stops.push(answer.assembler.push(std::string_view(&c, 1)));
    if (job.request.num_logprobs >= 0) {
      GeneratedToken token;
      token.chosen = {static_cast<unsigned char>(c), -0.5F, std::string(1, c)};
      for (int k = 0; k < job.request.num_logprobs; ++k) {
        token.alternatives.push_back({k, -1.0F - static_cast<float>(k), std::string(1, 'a')});
      }
      answer.held.push_back(std::move(token));
    }
    if (answer.stops.stopped()) {
      event.finished = FinishReason::kStop;
    } else if (answer.generated == job.request.max_tokens) {
      event.finished = FinishReason::kLength;
    } else if (answer.next == answer.text.size() && !forever && !job.request.ignore_eos) {
      event.finished = FinishReason::kStop;
    }
    if (event.finished) {
      answer.finished = true;
      const auto& transfer = job.request.kv_transfer;
      if (transfer && transfer->role == KvTransfer::Role::kProduce) {
        event.kv_transfer = produced();
      }
      event.text += answer.stops.push(answer.assembler.finish()) + answer.stops.finish();
    }
    if (!event.text.empty() || event.finished) {
      event.tokens = std::exchange(answer.held, {});
    }
    event.generated_tokens = answer.generated;
    job.callback(event);
    all_finished = all_finished && answer.finished;
  }
  return all_finished;
}

}  // namespace karez
