// What a run of `karez generate` cost: the closing table and the same figures as JSON.
#pragma once

#include <cstdint>
#include <string>

#include "engine/generator.h"
#include "engine/missed_mass.h"
#include "engine/on_miss.h"
#include "engine/spec_options.h"
#include "kv/kv_types.h"
#include "model/model_runner.h"

namespace karez {

struct GenerateReport {
  GenerationResult result;
  StepTimes decode_times;
  double load_seconds = 0;
  std::string model;  // file name
  KvType kv_type = KvType::kBf16;
  int token_budget = 0;  // of sparse decode; 0: dense
  SpecType spec_type = SpecType::kNone;
  std::string home;  // the tier below the fast one; empty: none
  OnMiss on_miss;
  MissedMass missed;  // under a bound
  int context_tokens = 0;
  int threads = 0;
  std::uint32_t seed = 0;
};

// Some lines for people, aligned.
std::string to_table(const GenerateReport& report);
// {"runs": [{...}]} with the keys of `karez bench --json` and some of its own.
std::string to_json(const GenerateReport& report);

}  // namespace karez
