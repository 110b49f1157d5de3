#include "server/generation_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace karez {
namespace {

GenerationRequest one_prompt() {
  GenerationRequest request;
  request.kind = ApiKind::kCompletion;
  request.prompts.resize(1);
  return request;
}

nlohmann::json usage_of(const GenerationEvent& event) {
  const GenerationRequest request = one_prompt();
  GenerationJson json(request, ModelInfo{}, "id", 0);
  json.take(0, event);
  return nlohmann::json::parse(json.whole())["usage"];
}

GenerationEvent last_event() {
  GenerationEvent event;
  event.finished = FinishReason::kStop;
  event.prompt_tokens = 5;
  event.generated_tokens = 3;
  return event;
}

TEST(GenerationJson, UsageTellsOfATierOnlyIfThereIsOne) {
  GenerationEvent event = last_event();
  EXPECT_FALSE(usage_of(event).contains("kv_tier_details"));
  event.kv_blocks_read = 40;
  event.kv_blocks_loaded = 7;
  const nlohmann::json details = usage_of(event)["kv_tier_details"];
  EXPECT_EQ(details, nlohmann::json({{"blocks_read", 40}, {"blocks_loaded", 7}}));
}

TEST(GenerationJson, UsageTellsWhatABoundLeftOut) {
  GenerationEvent event = last_event();
  event.kv_blocks_read = 40;
  event.kv_missed = {.num_lists = 8, .blocks_skipped = 6, .sum = 2, .worst = 0.75};
  const nlohmann::json details = usage_of(event)["kv_tier_details"];
  EXPECT_EQ(details["blocks_skipped"], 6);
  EXPECT_EQ(details["missed_mass_mean"], 0.25);
  EXPECT_EQ(details["missed_mass_worst"], 0.75);
}

}  // namespace
}  // namespace karez
