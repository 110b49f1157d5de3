// One engine under measurement: a base sequence that is prefilled once, and copies of it that
// decode.
//
// Copies own their memory: sequences that merely shared the base's blocks would read the same
// bytes once for all from the processor's caches, which no real load does.
// Thread: one caller at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/lookahead_meter.h"
#include "engine/missed_mass.h"
#include "kv/prefetch_stats.h"
#include "model/forward_batch.h"
#include "model/llama_reference.h"
#include "model/model_runner.h"

namespace karez {

class BlockLoader;
class KVCacheManager;
class KeyIndex;

// What moved between the fast tier and home, and how long steps waited for it.
struct BenchTraffic {
  double stall_seconds = 0;
  std::int64_t blocks_needed = 0;
  std::int64_t demand_misses = 0;
  std::int64_t bytes_read = 0;
  std::int64_t bytes_written = 0;
  MissedMass missed;
  PrefetchStats prefetch;
  std::optional<LookaheadMeter::Figures> agreement;
};

// One measured decode: seconds of all its steps, and where they went if the engine tells.
struct BenchDecode {
  double seconds = 0;
  int steps = 0;
  StepTimes times;                      // steps == 0: the engine does not tell
  std::optional<BenchTraffic> traffic;  // with a home tier
};

class BenchEngine {
 public:
  virtual ~BenchEngine() = default;

  // Appends tokens to the base sequence and computes the logits of the last. Seconds it took.
  virtual Expected<double> prefill(std::span<const TokenId> tokens) = 0;
  // Makes num_copies copies of the base sequence and touches them once, outside of measured time.
  virtual Expected<void> make_copies(int num_copies) = 0;
  // Appends one token to each copy, steps times, with logits of every row. tokens: [steps][copies].
  // Where not all fit at once, some after the others.
  // Afterwards the copies are as make_copies() left them.
  virtual Expected<BenchDecode> decode(std::span<const TokenId> tokens) = 0;
  virtual void drop_copies() = 0;
  // Drops the base sequence too.
  virtual void clear() = 0;
};

// All must outlive the engine; kv needs room for 1 + the copies, or a home tier. key_index: from
// attach_key_index(), or null; with one, decoded rows are sparse. loader: the runner's selection
// listener, for a store with a home tier; else null. meter: the loader's, or null.
// max_running > 0: only so many copies exist at a time. Others stand for requests that wait: they
// run when the first ones have ended, over the same keys and values, which costs the same.
std::unique_ptr<BenchEngine> make_karez_bench_engine(ModelRunner& runner, KVCacheManager& kv,
                                                     KeyIndex* key_index, BlockLoader* loader,
                                                     LookaheadMeter* meter, int step_tokens,
                                                     int max_running = 0);
// `reference` must outlive the engine. The base is the first copy.
std::unique_ptr<BenchEngine> make_llama_bench_engine(LlamaReference& reference, int step_tokens);

}  // namespace karez
