// What the engine thread does in one turn, without the thread.
//
// Thread: one owner thread.
// Owns: scheduler, prefix cache and the state of each request.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/block_loader.h"
#include "engine/choice_stream.h"
#include "engine/compression_turns.h"
#include "engine/engine_client.h"
#include "engine/kv_peers.h"
#include "engine/prefix_restorer.h"
#include "engine/prefix_saver.h"
#include "kv/kv_cache_manager.h"
#include "kv/prefix_cache.h"
#include "kv/store/prefix_store.h"
#include "model/model_runner.h"
#include "sched/scheduler.h"
#include "spec/speculation.h"

namespace karez {

class EngineLoop {
 public:
  struct Submission {
    std::shared_ptr<const Request> request;  // checked
    std::vector<ChoiceStream> choices;       // [num_choices]
    EngineClient::Callback callback;
    CompressionSchedule compression;  // of each choice's KV
    double submitted_seconds = 0;
  };

  // Prefix blocks that outlive the process.
  struct StoredPrefixes {
    PrefixStore* store = nullptr;  // null: there are none
    double load_limit_seconds = 0;
  };

  // All must outlive it. key_index: of kv's blocks; null: the runner has no sparse attention.
  // loader: the runner's selection listener, needed if kv has a home tier; else may be null.
  // prefix_cache: null turns sharing off. dense_rows: as EngineOptions. speculation: null: nobody
  // drafts. compressor: null: no submission may ask for it. stored: of use with a prefix cache
  // only. clock: seconds.
  EngineLoop(ModelRunner& runner, KVCacheManager& kv, const KeyIndex* key_index,
             BlockLoader* loader, std::unique_ptr<PrefixCache> prefix_cache,
             std::unique_ptr<Speculation> speculation, std::unique_ptr<WindowCompressor> compressor,
             const StoredPrefixes& stored, const SchedulerOptions& options, bool dense_rows,
             std::function<double()> clock);

  // Before the first add(). Without it requests with kv_transfer are as any others.
  void set_peers(KvPeers peers) { peers_ = std::move(peers); }

  void add(Submission submission);
  // Ends all its choices with kCancelled. Unknown ids are ignored.
  void cancel(RequestId id);
  void cancel_all();

  // Requests that are held back until stored blocks are there go on; those that are ready start.
  // Between steps.
  void advance_restores();
  // Whether such requests wait: advance_restores() is called again soon.
  bool is_restoring() const { return restorer_ != nullptr && restorer_->num_held() > 0; }

  // The same for requests whose KV comes from another node, and for KV that is kept for others.
  void advance_peers();
  bool waits_for_peers() const;
  // With nothing else to do: when to advance both again. None: nothing waits.
  std::optional<std::chrono::milliseconds> next_turn() const;

  bool has_work() const { return scheduler_.has_work(); }
  // All work waits for slots that KV from other nodes, or from the store, has taken: the next step
  // comes after next_turn().
  bool waits_for_slots() const { return waits_for_slots_; }
  // One step, in two halves so that others can see what runs while the model computes.
  // Requires: has_work(); no add() or cancel() between the two.
  void plan();
  void compute();

  // Calls the callbacks of everything that happened since the last call.
  void deliver();
  // The next compute() makes one.
  void want_kv_map() { wants_kv_map_ = true; }
  // What was made since the last call; null: none.
  std::shared_ptr<const KvMap> take_kv_map() { return std::exchange(kv_map_, nullptr); }
  EngineStats stats() const;
  // Immutable, and stats() of what it points to, for any thread; null: there is none.
  const PrefixStore* store() const { return store_; }
  // Immutable answer for any thread.
  bool can_ever_fit(int num_tokens) const { return scheduler_.can_ever_fit(num_tokens); }

 private:
  struct ActiveRequest {
    Submission submission;
    int num_unfinished = 0;
    int cached_tokens = 0;
    std::int64_t kv_blocks_read = 0;
    std::int64_t kv_blocks_loaded = 0;
    std::int64_t draft_tokens = 0;
    std::int64_t accepted_draft_tokens = 0;
    MissedMass kv_missed;
    std::optional<KvTransfer> kv_transfer;  // where its prompt's KV is kept
    std::optional<double> scheduled_seconds;
    std::optional<double> first_token_seconds;
  };

  // Asks for drafts of the sequences that generate in the next step.
  void draft();
  void note_scheduled(const StepPlan& plan);
  // That sequences which are not the scheduler's have, and give back.
  std::int64_t slots_of_others() const;
  // Counts them; sequences whose KV could not be read from home are computed again.
  void note_reads(StepPlan& plan, std::span<const BlockLoader::SequenceReads> reads);
  // Samples for each choice with logits and keeps its events.
  StepOutput sample(const StepPlan& plan, std::span<const float> logits);
  // A token of the choice, appended to the output. False: it has ended.
  bool sample_one(ActiveRequest& active, int choice, std::span<const float> row,
                  StepOutput& output);
  // Samples after the sequence's token and after each draft that turns out right. Returns how many
  // did. rows: f32 [1 + num_verified_drafts][vocab_size].
  int verify(ActiveRequest& active, const PlannedSequence& planned, std::span<const float> rows,
             StepOutput& output);
  bool produces(const PlannedSequence& planned) const;
  // Of a request that produces, whose prompt is computed. The runner's logits of the step may be
  // gone after it. False: it has ended, there was no room.
  bool keep_for_consumer(const PlannedSequence& planned, ActiveRequest& active,
                         std::span<const float> logits, StepOutput& output);
  // Samples its first token, if its logits have come too, and gives it to the scheduler.
  void start_admitted(const KvConsumer::Ready& arrived);
  bool is_recomputed_when_lost(RequestId request);
  void note_recomputed(RequestId request, std::string_view reason);
  // Requests whose KV their producer does not give any more. After a step.
  void end_lost();
  void forget(RequestId id);
  void end_choices(RequestId id, int first_choice, int num_choices, FinishReason reason,
                   const std::optional<Status>& error);
  void keep_event(ActiveRequest& active, GenerationEvent event);

  ModelRunner& runner_;
  KVCacheManager& kv_;
  const KeyIndex* key_index_;
  BlockLoader* loader_;
  bool dense_rows_;
  std::unique_ptr<PrefixCache> prefix_cache_;
  std::unique_ptr<Speculation> speculation_;
  std::unique_ptr<WindowCompressor> compressor_;
  PrefixStore* store_;
  std::unique_ptr<PrefixRestorer> restorer_;  // null, as the saver: there is no store
  std::unique_ptr<PrefixSaver> saver_;
  SchedulerOptions options_;
  Scheduler scheduler_;
  KvPeers peers_;
  double next_recompute_note_seconds_ = 0;
  std::int64_t unnoted_recomputes_ = 0;
  std::vector<RequestId> lost_;  // in the step at hand, and not to be computed again
  std::function<double()> clock_;
  std::unordered_map<RequestId, ActiveRequest> active_;
  std::vector<std::pair<EngineClient::Callback, GenerationEvent>> events_;
  std::vector<float> scratch_;
  std::vector<float> kept_logits_;
  bool wants_kv_map_ = false;
  std::shared_ptr<const KvMap> kv_map_;
  bool waits_for_slots_ = false;
  StepPlan plan_;  // between plan() and compute()
  double step_start_seconds_ = 0;
  EngineStats totals_;  // of it the sums
};

}  // namespace karez
