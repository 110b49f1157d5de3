// Which settings llama.cpp is measured with: its best ones, found by trying.
//
// Thread: one caller.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/bench_measure.h"
#include "engine/bench_report.h"

namespace karez {

struct PeerSettings {
  bool flash_attention = false;
  std::string cache_type_k = "f16";
  std::string cache_type_v = "f16";
  int step_tokens = 512;

  // "fa=off,k=q8_0,v=f16,ub=512"
  std::string to_string() const;
  // "q8_0/f16"
  std::string kv_type() const;
};

// What to_string() writes; parts may be missing (then they are the defaults above) and in any
// order. Fails: kInvalidArgument naming the part.
Expected<PeerSettings> parse_peer_settings(std::string_view text);

struct PeerChoice {
  PeerSettings settings;
  std::vector<BenchPeerCandidate> tried;
};

// Runs one sequence of tokens.prompt with each candidate, then a few decode steps, and picks the
// fastest decode; then takes a larger step if that makes its prefill faster.
Expected<PeerChoice> find_best_peer_settings(const std::string& model_path, int num_threads,
                                             const BenchTokens& tokens,
                                             const BenchProgress& progress);

}  // namespace karez
