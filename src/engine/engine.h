// The engine: one thread that loops schedule, forward, sample, update, and tells the callers.
//
//   any thread:     submit, cancel, stats  -->  inbox (mutex)  -->  engine thread
//   engine thread:  owns scheduler, prefix cache, KV store, runner and samplers; calls callbacks
//
// It sleeps while there is nothing to do. A failed forward() ends the requests of that step with
// kError and nothing else. Requests are looked at between steps, so a cancel takes effect within a
// step.
// Thread: submit, cancel, stats and shutdown from any; submit and cancel also from callbacks.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "attention/key_index.h"
#include "base/status.h"
#include "compress/compression_options.h"
#include "engine/block_loader.h"
#include "engine/engine_client.h"
#include "engine/engine_loop.h"
#include "engine/request_check.h"
#include "engine/vocabulary.h"
#include "kv/kv_cache_manager.h"
#include "kv/store/prefix_store.h"
#include "model/model_runner.h"
#include "sched/scheduler_options.h"
#include "spec/speculation.h"

namespace karez {

struct EngineOptions {
  SchedulerOptions scheduler;
  int context_tokens = 0;         // prompt and answer together, >= 2
  int max_queue = 1024;           // requests that wait to be run; more are refused. >= 1
  bool prefix_cache = true;       // share the KV of equal prompt beginnings
  std::string kv_identity;        // what changes the KV besides the tokens (model, type, positions)
  int prefix_hash_bits = 128;     // less only in tests
  double load_limit_seconds = 5;  // that a request waits for stored prefix blocks at most
  bool dense_rows = false;        // with a key index too: it is for drafts alone
  bool compress = false;          // the KV of requests that do not say
  CompressionOptions compression;
  // Seconds since any fixed point; called from several threads. Empty: the steady clock.
  std::function<double()> clock;

  // Fails: kInvalidArgument naming the field, its value and the allowed range.
  Expected<void> validate() const;
};

class Engine final : public EngineClient {
 public:
  // Starts the thread. The vocabulary must outlive the engine. key_index: from attach_key_index(),
  // for a runner with sparse attention; else null. loader: the runner's selection listener, for a
  // store with a home tier; else null. speculation: null: nobody drafts. store: where prefix blocks
  // outlive the process; null: nowhere. peers: other nodes; the store is theirs too.
  // Fails: as EngineOptions::validate().
  static Expected<std::unique_ptr<Engine>> create(
      const EngineOptions& options, std::unique_ptr<ModelRunner> runner,
      std::unique_ptr<KVCacheManager> kv, const Vocabulary& vocabulary,
      std::unique_ptr<KeyIndex> key_index = nullptr, std::unique_ptr<BlockLoader> loader = nullptr,
      std::unique_ptr<Speculation> speculation = nullptr,
      std::unique_ptr<PrefixStore> store = nullptr, KvPeers peers = {});
  // Cancels what still runs.
  ~Engine() override;

  Expected<RequestId> submit(Request request, Callback callback) override;
  Expected<void> check_queue() const override;
  void cancel(RequestId id) override;
  EngineStats stats() const override;
  std::shared_ptr<const KvMap> kv_map() override;

  // Refuses new requests, lets the others finish until the deadline, cancels the rest (their
  // callbacks get kCancelled) and returns when the thread has ended. Again: only an earlier
  // deadline has an effect. Not from callbacks.
  void shutdown(std::chrono::milliseconds deadline);

 private:
  Engine(const EngineOptions& options, std::unique_ptr<ModelRunner> runner,
         std::unique_ptr<KVCacheManager> kv, const Vocabulary& vocabulary,
         std::unique_ptr<KeyIndex> key_index, std::unique_ptr<BlockLoader> loader,
         std::unique_ptr<Speculation> speculation, std::unique_ptr<PrefixStore> store,
         KvPeers peers);
  void run();
  // Requires: mutex_ is held.
  Expected<void> room_in_queue() const;
  // When the windows of the request are compressed, or never.
  Expected<CompressionSchedule> compression_of(const Request& request) const;
  // Of a sequence of its own.
  std::int64_t kv_bytes(std::int64_t num_tokens) const;

  const EngineOptions options_;
  const Vocabulary& vocabulary_;
  const RequestLimits limits_;
  const KVCacheSpec spec_;
  const bool can_compress_;
  std::unique_ptr<BlockLoader> loader_;  // the engine thread's, as the five below
  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<KeyIndex> key_index_;
  std::unique_ptr<KVCacheManager> kv_;
  std::unique_ptr<PrefixStore> store_;
  EngineLoop loop_;

  mutable std::mutex mutex_;  // of everything down to the thread
  std::condition_variable wake_;
  std::vector<EngineLoop::Submission> submissions_;
  std::vector<RequestId> cancellations_;
  RequestId last_id_ = 0;
  EngineStats stats_;  // of the last step, or of the one that is computed now
  bool has_store_results_ = false;
  bool wants_kv_map_ = false;
  std::shared_ptr<const KvMap> kv_map_;
  bool is_closing_ = false;
  std::chrono::steady_clock::time_point deadline_;

  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace karez
