// Decides what each step computes: continuous batching under three budgets.
//
//   loop:  plan = schedule();  run the plan's tokens through the model;  update(plan, samples)
//
// A step is a number of tokens for each of some sequences; there is no prefill or decode mode.
// Budgets: rows of a step, sequences that run at once, free slots (policy.h divides the rows).
//
// Slots. Running sequences take slots as they grow, in the order of service. When none are left the
// last one in that order is preempted: it loses its KV, waits, and is computed again later (what
// the prefix cache still has of it is found). So the first one always progresses, and in turn each
// one becomes the first. One that has the whole fast tier to itself and still lacks slots is ended
// (StepPlan::ended), or waits while others than the scheduler's sequences have slots; the caller
// must refuse prompts that can never fit (can_ever_fit).
// A waiting sequence starts only if there are slots for all its tokens, besides those that running
// prompts will still need and one block for each running sequence; else it would be preempted soon.
// Nobody overtakes a sequence that waits for slots.
//
// With a home tier (Residency) slots are what a step reads, not what a sequence has. Each sequence
// that runs has a floor: the slots without which its steps would wait for home all the time, and at
// least what one layer reads at a time. Sequences start, and go on, while the floors fit together.
// When they do not, the last one in the order of service is demoted: it keeps its KV at home and
// goes on from there later. Only if home is full it is computed again. A sequence alone may be
// larger than the fast tier: it streams, layer by layer. When what one layer of it reads does not
// fit any more, its answer ends.
//
// Equal prompts. A sequence whose prompt begins like one that is being computed ahead of it waits
// until those blocks are findable, instead of computing them again; others may start meanwhile.
//
// Starvation: none under kFcfs. Under kPriority a stream of requests with lower numbers can hold
// back those with higher numbers for as long as it lasts, waiting or running (by preemption).
//
// Drafts (speculative decoding) are rows beside a sequence's own token. They take slots that nobody
// else needs in the step, and never preempt. Their KV is given up again in update(), as far as they
// were not accepted; nobody else finds it, and it does not go home before.
//
// Does not know models, logits, stop conditions, time or text.
// Thread: one owner thread, the KVCacheManager's.
// Owns: the sequences, and those that it opens in the KVCacheManager.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "kv/kv_cache_manager.h"
#include "kv/prefix_cache.h"
#include "sched/policy.h"
#include "sched/request.h"
#include "sched/scheduler_options.h"
#include "sched/sequence.h"
#include "sched/sequence_listener.h"
#include "sched/step_plan.h"

namespace karez {

struct SchedulerStats {
  int num_running = 0;  // choices; a prompt that is being computed counts each of its choices
  int num_waiting = 0;  // requests and preempted choices
  std::int64_t preemptions = 0;            // demotions included
  std::int64_t demotions = 0;              // preempted without losing KV
  std::int64_t prefix_queries_tokens = 0;  // prompt tokens looked up, once per request
  std::int64_t prefix_hits_tokens = 0;     // of them found
  std::int64_t early_windows = 0;          // due before their time: slots were short
};

class Scheduler {
 public:
  // Requires: options are valid. prefix_cache may be null: nothing is shared but by num_choices.
  // listener: null: nobody. All must outlive the scheduler; every other sequence of kv takes slots
  // from it.
  Scheduler(KVCacheManager& kv, PrefixCache* prefix_cache, const SchedulerOptions& options,
            SequenceListener* listener = nullptr);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Whether a sequence of so many tokens can be computed when it has all slots to itself. From any
  // thread.
  bool can_ever_fit(int num_tokens) const;

  // Requires: between update() and schedule(); an id that is not in use, a prompt that is not empty
  // and can ever fit, 1 <= num_choices <= max_num_seqs.
  // compression: when the windows of its sequences are compressed; none of its rows is computed
  // behind the publication of one that compressed() has not been called for.
  void add(const Request& request, const CompressionSchedule& compression = {});
  // The same for a prompt that is computed already, or its beginning, in an open sequence of the
  // store that becomes the scheduler's. If it is lost or must give way it is computed again.
  // generated: what follows the prompt. Requires: as add(); a token is left to compute, none
  // that is computed lies behind where compression begins; one choice if something is generated.
  struct Origin {
    // The first tokens, whose blocks are at home with somebody else: they take no room in the home
    // tier.
    int num_remote_tokens = 0;
    // The KV is what would be computed here. Only then, and without remote tokens, does the prefix
    // cache offer the sequence's blocks to others.
    bool is_exact = true;
  };
  void add_computed(const Request& request, const CompressionSchedule& compression, SequenceId kv,
                    const Origin& origin, std::span<const TokenId> generated = {});
  // Whether slots for such a sequence may be taken now, for all but the last token of the prompt of
  // a request that is not known here yet, without others being preempted soon.
  bool has_room_for(const Request& request, int num_remote_tokens) const;
  // Ends all choices of a request in any phase; their slots are free or idle afterwards. Unknown
  // ids are ignored. Requires: as add().
  void cancel(RequestId request);

  // The running sequences that could use drafts, in the order of service; not those that come to a
  // publication with their own row, or wait there. Valid until the next call that is not const.
  std::vector<DraftCandidate> draft_candidates() const;
  // For the next step alone; as many of them are computed as there is room for.
  // Requires: the key is a candidate's.
  void set_drafts(const ScheduleKey& key, Drafts drafts);

  // The running sequences with compression, in the order of service, and their next window.
  // Valid until the next call that is not const. Not between schedule() and update().
  std::vector<CompressionCandidate> compression_candidates() const;
  // Whether the next steps may preempt, with so many slots taken besides. Not with a home tier.
  bool is_short_of_slots(std::int64_t spare) const;
  // The candidate's window is due now. Requires: CompressionSchedule::may_be_early().
  void publish_early(const ScheduleKey& key);
  // The candidate's window is compressed now.
  void compressed(const ScheduleKey& key);
  // Slots for the window of a sequence that is due, at the cost of those behind it. False: it is
  // the last one, and waits for those before it and for set_slots_of_others(); where there are none
  // of either, it goes on without compression.
  [[nodiscard]] bool make_room_to_compress(const ScheduleKey& key, std::int64_t slots);
  // The candidate goes on without compression: slots that make_room_to_compress() has counted
  // cannot be had, because the tier below does not answer. Nobody is held without end.
  void stop_compressing(const ScheduleKey& key);
  // The candidate's KV was lost: it is computed again. False: as of lose().
  [[nodiscard]] bool recompute(const ScheduleKey& key);

  // That sequences of kv which are not the scheduler's have in the fast tier, and give back without
  // its doing. While there are any nothing is ended, and nobody goes on without compression, for
  // lack of slots. Before make_room_to_compress() and schedule(), as often as it changes.
  void set_slots_of_others(std::int64_t slots) { slots_of_others_ = slots; }
  // The next step. Not empty (sequences or ended) if there is work, unless all of it waits for
  // compressed(), or for slots that others have. Its room in the KV store is taken. Call update()
  // or update_failed() with it before the next one.
  StepPlan schedule();
  // The step was computed and sampled.
  void update(const StepPlan& plan, const StepOutput& output);
  // Before update(): the sequence's results are void, because KV that it read was lost. It is
  // computed again, with the tokens that it has. False: that has happened too often; it is ended,
  // and the caller tells. Requires: `planned` is of the open plan.
  [[nodiscard]] bool lose(PlannedSequence& planned);
  // The step failed: its sequences are ended, their KV is not used.
  void update_failed(const StepPlan& plan);

  bool has_work() const { return !running_.empty() || !waiting_.empty(); }
  SchedulerStats stats() const;

 private:
  using Sequences = std::map<ScheduleKey, Sequence>;  // in the order of service

  void enqueue(const Request& request, Sequence sequence);
  // Takes slots for up to num_tokens more tokens; returns for how many. Preempts those behind it.
  int make_room(Sequences::iterator sequence, int num_tokens);
  void preempt_last();
  // As far as floors do not fit together.
  void demote_last_ones();
  // What others have taken for it goes back. False: that is nothing.
  [[nodiscard]] bool give_back_slots(const Sequence& sequence);
  // The same for all that run.
  [[nodiscard]] bool give_back_all_slots();
  // Closes it, and lets it wait to be computed again.
  void wait_again(Sequences::iterator sequence);
  // The same. False: as of lose().
  [[nodiscard]] bool start_again(Sequences::iterator sequence);
  // The last waiting sequence that is demoted gives up its KV. False: there is none.
  [[nodiscard]] bool drop_last_demoted();
  void plan_running(StepPlan& plan, int& prefill_left);
  // False: not now, and nobody behind it either.
  [[nodiscard]] bool plan_waiting(StepPlan& plan, Sequences::iterator sequence, int& prefill_left);
  // Takes slots for one token and the drafts. False: there are too few, of those that the others
  // leave.
  [[nodiscard]] bool make_room_for_drafts(Sequence& sequence, int num_drafts,
                                          std::int64_t slots_of_others);
  void add_to_plan(StepPlan& plan, const ScheduleKey& key, const Sequence& sequence,
                   int num_tokens) const;
  void end(StepPlan& plan, Sequences::iterator sequence);
  // Opens the sequence in the KV store, with what the prefix cache knows of it.
  void open(Sequence& sequence);
  void close(Sequence& sequence);
  bool waits_for_prefix(const ScheduleKey& key, const Sequence& sequence) const;
  bool has_room_for(const Sequence& sequence) const;
  bool floors_fit_with(const Sequence* another) const;
  std::int64_t floor_slots(const Sequence& sequence) const;
  std::int64_t slots_to_read_one_layer(int num_tokens) const;
  // Of so many rows of the next step, those beside whose blocks one layer can be read.
  int most_that_stream(const Sequence& sequence, int num_rows) const;
  // The same; before it would be none, what was taken for later is given back.
  int take_what_streams(const Sequence& sequence, int num_rows);
  // The first tokens whose KV is that of a prompt: what lies behind was computed sparsely.
  int num_dense_tokens(const Sequence& sequence) const;
  std::int64_t slots_to_compute_rest(const Sequence& sequence) const;
  void take_accepted(Sequence& sequence, std::span<const SampledToken> accepted);
  void take_samples(Sequences::iterator sequence, std::span<const SampledToken> samples);
  int num_running() const;

  KVCacheManager& kv_;
  PrefixCache* prefix_cache_;
  SequenceListener* listener_;
  SchedulerOptions options_;
  std::int64_t slots_total_;
  std::int64_t home_blocks_ = 0;  // 0: there is no home tier
  Sequences running_;
  Sequences waiting_;
  std::uint64_t num_arrivals_ = 0;
  std::int64_t slots_of_others_ = 0;  // as the caller says
  bool plan_is_open_ = false;
  SchedulerStats counters_;  // of it the sums
};

}  // namespace karez
