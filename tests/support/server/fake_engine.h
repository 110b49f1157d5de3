// An engine without a model, for tests of the server: deterministic answers, a step at a time.
//
// The answer to a prompt is a fixed text of the prompt's length, written byte by byte. Commands in
// the prompt's text: "<forever>" never ends by itself, "<fail>" fails after three tokens, "<emoji>"
// answers with four-byte characters. A request that produces KV ends with a made-up place of it.
// Thread: as EngineClient; the steps run in a thread of its own.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "engine/engine_client.h"

namespace karez {

struct FakeEngineOptions {
  int max_running = 32;
  int max_waiting = 4096;
  std::chrono::microseconds step{500};
  int prefill_tokens_per_step = 4096;
};

class FakeEngine final : public EngineClient {
 public:
  explicit FakeEngine(const FakeEngineOptions& options = {});
  ~FakeEngine() override;

  Expected<RequestId> submit(Request request, Callback callback) override;
  Expected<void> check_queue() const override;
  void cancel(RequestId id) override;
  EngineStats stats() const override;

  // What submit() was given last.
  Request last_request() const;
  int cancels() const { return cancels_; }
  // No steps while paused: everything stays queued or running.
  void pause(bool paused);

  // Where the KV of every request that produces is said to be.
  static KvTransfer produced();
  // The answer to a prompt.
  static std::string answer(const std::string& prompt_text);

 private:
  struct Job;
  void loop();
  // Requires: mutex_ is held.
  Expected<void> room_in_queue() const;
  void step_all();
  // True: the job is over.
  bool step(Job& job);

  const FakeEngineOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::list<std::unique_ptr<Job>> waiting_;
  std::list<std::unique_ptr<Job>> running_;
  Request last_request_;
  EngineStats stats_;
  RequestId next_id_ = 1;
  bool paused_ = false;
  bool stopping_ = false;
  std::atomic<int> cancels_{0};
  std::thread thread_;
};

}  // namespace karez
