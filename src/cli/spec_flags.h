// The flags of speculative decoding, shared by the commands that generate text.
//
// Names are llama.cpp's; vLLM's --speculative-config is another way to say the same.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "cli/tier_flags.h"
#include "engine/spec_options.h"

namespace CLI {
class App;
}

namespace karez {

// As typed; empty: not given.
struct SpecFlags {
  std::string type;
  std::string draft_model;
  std::string draft_kv_bytes;
  std::int64_t max_drafts = SpeculationOptions{}.max_drafts;
  std::int64_t min_drafts = SpeculationOptions{}.min_drafts;
  std::int64_t draft_token_budget = SpecOptions{}.draft_token_budget;
  std::string config;  // JSON
};

void add_spec_flags(CLI::App& command, SpecFlags& flags);

// Fails: kInvalidArgument naming the flag or the JSON key, its value and what is allowed.
Expected<SpecOptions> check_spec_flags(const SpecFlags& flags);

struct TierAndDraftOptions {
  HomeOptions home;
  SpecOptions spec;
  OnMiss on_miss;
};

// All checks of both kinds of flags, in the order in which they build on each other; makes `sparse`
// tell what is needed of it.
// Fails: as each of them.
Expected<TierAndDraftOptions> check_tiers_and_drafts(const TierFlags& tiers, const SpecFlags& spec,
                                                     SparseOptions& sparse);

}  // namespace karez
