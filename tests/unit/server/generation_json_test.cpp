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

TEST(GenerationJson, UsageIsTheSumOverPromptsWhoseChoicesShare) {
  GenerationRequest request;
  request.kind = ApiKind::kCompletion;
  request.prompts.resize(2);
  request.num_choices = 2;
  GenerationJson json(request, ModelInfo{}, "id", 0);
  for (int choice = 0; choice < 4; ++choice) {
    const bool is_second_prompt = choice >= 2;
    GenerationEvent event = last_event();
    event.kv_blocks_read = (is_second_prompt ? 100 : 40) + choice % 2;  // the later one has more
    event.kv_blocks_loaded = is_second_prompt ? 9 : 7;
    event.draft_tokens = is_second_prompt ? 6 : 5;
    event.accepted_draft_tokens = is_second_prompt ? 1 : 4;
    event.kv_missed = {.num_lists = 4, .blocks_skipped = 3, .sum = 1, .worst = 0.5};
    event.choice = choice % 2;
    json.take(choice / 2, event);
  }
  const nlohmann::json usage = nlohmann::json::parse(json.whole())["usage"];
  EXPECT_EQ(usage["prompt_tokens"], 10);
  EXPECT_EQ(usage["completion_tokens"], 12);
  EXPECT_EQ(usage["completion_tokens_details"]["accepted_prediction_tokens"], 5);
  EXPECT_EQ(usage["completion_tokens_details"]["rejected_prediction_tokens"], 6);
  EXPECT_EQ(usage["kv_tier_details"]["blocks_read"], 142);
  EXPECT_EQ(usage["kv_tier_details"]["blocks_loaded"], 16);
  EXPECT_EQ(usage["kv_tier_details"]["blocks_skipped"], 6);
  EXPECT_EQ(usage["kv_tier_details"]["missed_mass_mean"], 0.25);
}

}  // namespace
}  // namespace karez
