// Measures engines at depths and concurrencies, taking turns repetition by repetition, so that a
// slow minute of the machine slows both.
//
// Knows engines only through BenchEngine; loads nothing.
// Thread: one caller; the engines compute on threads of their own.
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/bench_engine.h"
#include "engine/bench_report.h"

namespace karez {

struct BenchShape {
  std::vector<int> depths;         // ascending, > 0
  std::vector<int> concurrencies;  // > 0
  int generate_tokens = 32;        // decode steps of a repetition
  int repetitions = 5;             // of each decode
  int prefill_repetitions = 1;

  int max_depth() const;
  int max_concurrency() const;
};

struct BenchTokens {
  std::vector<TokenId> prompt;        // [max_depth]
  std::vector<TokenId> continuation;  // [generate_tokens][max_concurrency], any order
  // The prompt and what follows it. Where it is long enough all sequences go on with it; else, or
  // if it is empty, with `continuation`.
  std::vector<TokenId> text;
};

struct BenchSubject {
  BenchEngine* engine = nullptr;
  BenchRun labels;  // engine, model, KV type and so on, copied into each of its runs
};

// what is being done, and the part of all work that is done, in [0, 1]
using BenchProgress = std::function<void(std::string_view what, double done)>;

// The machine's memory bandwidth now, in bytes a second.
using BandwidthProbe = std::function<Expected<double>()>;

// For each depth and concurrency one run of each subject, in the subjects' order. The prefill
// figure of a depth is the same in all its runs. The probe, if there is one, takes a turn too: a
// step is held against the bandwidth of its own minute.
// Fails: as the engines and the probe do.
Expected<std::vector<BenchRun>> measure(std::span<const BenchSubject> subjects,
                                        const BenchShape& shape, const BenchTokens& tokens,
                                        const BandwidthProbe& probe, const BenchProgress& progress);

// Fills in what follows from other figures: shares of the bandwidth where it is known, and the
// ratios of each karez run to the llama.cpp run of the same depth and concurrency.
void derive_figures(std::vector<BenchRun>& runs);

}  // namespace karez
