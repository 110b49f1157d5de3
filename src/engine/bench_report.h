// What a benchmark measured, and its two forms: a table for people and JSON for programs.
//
// Pure data and text; measures nothing.
// Thread: values.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/lookahead_meter.h"
#include "kv/prefetch_stats.h"

namespace karez {

// Milliseconds of one decode step, and where they went.
struct BenchStepMs {
  double total = 0;
  // Absent where the engine does not tell.
  std::optional<double> dense;
  std::optional<double> attention;  // with select and attend
  std::optional<double> select;
  std::optional<double> stall;  // of select, waiting for what is at home
  std::optional<double> attend;
  std::optional<double> other;
};

// What became of guesses, in the steps of one repetition.
struct BenchLookahead {
  PrefetchStats counts;
  int steps = 0;
};

// One engine at one depth, concurrency and KV type.
struct BenchRun {
  std::string engine;             // "karez" or "llama.cpp"
  std::string model;              // file name
  std::string kv_mode = "dense";  // every key and value is read; "sparse": those selected
  int token_budget = 0;           // of sparse decode
  std::string kv_type;            // "bf16"; of llama.cpp the K and the V type: "q8_0/f16"
  int depth = 0;                  // tokens in each sequence before the first measured step
  int concurrency = 0;
  int threads = 0;
  std::int64_t kv_fast_bytes = 0;  // cap of the KV store; 0: the engine has none of ours

  double prefill_tokens_per_second = 0;     // median; of one sequence, from an empty one to `depth`
  double decode_tokens_per_second = 0;      // median; all sequences together
  BenchStepMs step_ms;                      // of the median repetition
  std::vector<double> prefill_repetitions;  // tokens per second
  std::vector<double> decode_repetitions;   // tokens per second

  // karez only
  int running = 0;                // sequences that fit under the cap at once; 0: all
  std::string home;               // where the full KV is; empty: in the fast tier alone
  double home_misses = 0;         // blocks that a step waits for, mean
  double home_miss_share = 0;     // of the blocks that it needs
  double home_read_bytes = 0;     // a step
  double home_written_bytes = 0;  // a step
  std::string variant;            // lookahead and pool; empty without a home
  std::string on_miss;            // what rows do about misses; empty without a home
  double blocks_skipped = 0;      // a step, mean
  double missed_mass_mean = 0;    // of the lists: share of the attention that was skipped
  double missed_mass_worst = 0;   // of one list
  double layers_ready_share = 0;  // of the layers, all they needed was there
  std::optional<LookaheadMeter::Figures> agreement;  // if it was measured
  std::optional<BenchLookahead> lookahead;           // if there were guesses
  double read_bandwidth_bytes_per_second = 0;        // of the machine, beside the median repetition
  std::int64_t kv_read_bytes = 0;              // a step, keys, values, index once per sequence
  std::int64_t weight_read_bytes = 0;          // a step, all weights once
  std::optional<double> bandwidth_share;       // bytes of a step / its time / machine's bandwidth
  std::optional<double> attention_over_floor;  // attention / time to read the KV at that bandwidth
  std::optional<double> prefill_ratio;         // to the paired run of the other engine; > 1: faster
  std::optional<double> decode_ratio;
  std::optional<double> decode_over_dense;  // sparse only: to our dense decode of the same run
};

struct BenchPeerCandidate {
  std::string settings;
  double prefill_tokens_per_second = 0;
  double decode_tokens_per_second = 0;
  bool chosen = false;
};

struct BenchReport {
  std::string cpu_name;
  std::string cpu_level;                       // of our attention kernels
  double read_bandwidth_bytes_per_second = 0;  // median of the runs'; with `threads` threads
  std::uint64_t seed = 0;
  std::string tokens_from;          // "pseudo-random" or the prompt file
  int exceeded_context_tokens = 0;  // the model's own, if a depth is beyond it
  std::string peer_settings;
  std::vector<BenchPeerCandidate> peer_candidates;
  std::vector<BenchRun> runs;
};

// The middle value, the lower one of two. 0 for none.
double median(std::vector<double> values);

// From how many sequences on sparse decode was at least as fast as dense decode.
struct BenchCrossover {
  std::string kv_type;
  int depth = 0;
  int token_budget = 0;
  std::string variant;             // of the runs
  std::optional<int> concurrency;  // none: not at the largest that was measured
};
// For each KV type, depth, budget and variant that was measured at two concurrencies or more.
std::vector<BenchCrossover> find_crossovers(const std::vector<BenchRun>& runs);

// {"runs": [...], "machine": {...}, ...}
nlohmann::json to_json(const BenchReport& report);

// Several lines, ending with a line break.
std::string to_table(const BenchReport& report);

}  // namespace karez
