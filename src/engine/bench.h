// `karez bench` without its command line: loads the engines, measures them and reports.
//
// Thread: one caller. Only one engine computes at a time; ggml's threads serve both (one OpenMP
// team), so neither spins while the other is measured.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention/sparse_rows.h"
#include "base/trace.h"
#include "engine/bench_measure.h"
#include "engine/bench_variant.h"
#include "engine/home_tier.h"
#include "engine/on_miss.h"
#include "kv/kv_types.h"

namespace karez {

struct BenchOptions {
  std::string model_path;
  BenchShape shape;
  std::vector<KvType> kv_types = {KvType::kBf16};
  bool dense_mode = true;          // measure dense decode
  std::vector<int> token_budgets;  // and sparse decode at each of these
  SparseOptions sparse;            // of sparse decode, but for the budget
  int num_threads = 1;
  int context_tokens = 0;              // limit of a sequence; 0: the model's. More than that is for
                                       // measuring speed: what the model says there is worth little
  int step_tokens = 512;               // tokens of a prompt computed at once
  std::int64_t kv_fast_bytes = 0;      // cap of the KV store; 0: what the run needs
  HomeOptions home;                    // below it; then the cap may be less than the run needs
  std::vector<BenchVariant> variants;  // of sparse decode, side by side; empty: as `home` says
  bool agreement = false;              // measure how well guesses agree with what rows then select
  OnMiss on_miss;  // of sparse decode with a home; a bound needs sparse.list_masses
  bool compare_llama = false;
  std::string peer_settings = "auto";  // see bench_peer.h
  TraceWriter* trace = nullptr;        // borrowed; null: none
  std::uint64_t seed = 1;
  std::string prompt_name;  // of the file that prompt_text is from; empty: pseudo-random tokens
  std::string prompt_text;  // UTF-8
};

// Fails: kInvalidArgument for a depth beyond the context or a prompt text that is too
// short; kResourceExhausted for a cap that is too small; both with the figures that are needed.
// Else as load_model() and LlamaReference::load().
Expected<BenchReport> run_bench(const BenchOptions& options, const BenchProgress& progress);

}  // namespace karez
