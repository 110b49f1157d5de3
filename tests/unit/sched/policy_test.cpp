#include "sched/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <vector>

namespace karez {
namespace {

using ::testing::HasSubstr;

struct Division {
  const char* name;
  std::vector<int> remaining;
  int max_num_batched_tokens;
  int max_prefill_tokens_beside_decodes;
  std::vector<int> tokens;
  int prefill_left;
};

void PrintTo(const Division& division, std::ostream* out) { *out << division.name; }

class DivideTokens : public testing::TestWithParam<Division> {};

TEST_P(DivideTokens, GivesEachSequenceItsShare) {
  const Division& division = GetParam();
  SchedulerOptions options;
  options.max_num_batched_tokens = division.max_num_batched_tokens;
  options.max_prefill_tokens_beside_decodes = division.max_prefill_tokens_beside_decodes;
  const TokenShares shares = divide_tokens(division.remaining, {}, options);
  EXPECT_EQ(shares.tokens, division.tokens);
  EXPECT_EQ(shares.prefill_left, division.prefill_left);
}

INSTANTIATE_TEST_SUITE_P(
    Table, DivideTokens,
    testing::Values(
        Division{"NobodyRuns", {}, 512, 128, {}, 512},
        Division{"OnePromptTakesAll", {1000}, 512, 128, {512}, 0},
        Division{"AShortPromptLeavesTheRest", {100}, 512, 128, {100}, 412},
        Division{"PromptsInOrder", {300, 300, 300}, 512, 128, {300, 212, 0}, 0},
        Division{"DecodesLimitPrompts", {1, 1000, 1}, 512, 128, {1, 128, 1}, 0},
        Division{"DecodesLimitNewPrompts", {1, 1}, 512, 128, {1, 1}, 128},
        Division{"TheLimitIsForAllPromptsTogether", {1, 100, 100}, 512, 128, {1, 100, 28}, 0},
        Division{"DecodesComeBeforeOlderPrompts", {50, 1, 1}, 3, 128, {1, 1, 1}, 0},
        Division{"TheFirstProgressesBeforeDecodes", {50, 1, 1}, 1, 128, {1, 0, 0}, 0},
        Division{"OlderDecodesFirst", {1, 1, 1}, 2, 128, {1, 1, 0}, 0},
        Division{"APromptBehindDecodesWaits", {1, 1, 50}, 2, 128, {1, 1, 0}, 0},
        Division{"LimitAboveTheBudget", {1, 50}, 8, 128, {1, 7}, 0},
        Division{"LimitOfOne", {1, 50}, 8, 1, {1, 1}, 0}));

TEST(DivideTokens, DraftsGetHalfOfWhatDecodesLeave) {
  SchedulerOptions options;
  options.max_num_batched_tokens = 16;
  const auto drafts_of = [&](std::vector<int> remaining, std::vector<int> drafts) {
    return divide_tokens(remaining, drafts, options).drafts;
  };
  EXPECT_EQ(drafts_of({1, 1}, {4, 4}), (std::vector<int>{4, 3})) << "14 rows are left";
  EXPECT_EQ(drafts_of({1, 100, 1}, {2, 9, 2}), (std::vector<int>{2, 0, 2})) << "prompts get none";
  EXPECT_EQ(drafts_of({1, 1}, {20, 20}), (std::vector<int>{7, 0}));
  const TokenShares shares =
      divide_tokens(std::vector<int>{1, 100}, std::vector<int>{3, 0}, options);
  EXPECT_EQ(shares.tokens, (std::vector<int>{1, 12})) << "prompts get what drafts leave";
}

TEST(DivideTokens, NobodyDraftsWhoIsNotInTheStep) {
  SchedulerOptions options;
  options.max_num_batched_tokens = 2;
  const TokenShares shares =
      divide_tokens(std::vector<int>{1, 1, 1}, std::vector<int>{3, 3, 3}, options);
  EXPECT_EQ(shares.tokens, (std::vector<int>{1, 1, 0}));
  EXPECT_EQ(shares.drafts, (std::vector<int>{0, 0, 0}));
}

TEST(ScheduleKey, OrdersByPriorityOnlyIfThePolicySaysSo) {
  const auto fcfs = SchedulingPolicy::kFcfs;
  const auto priority = SchedulingPolicy::kPriority;
  EXPECT_LT(schedule_key(fcfs, 9, 1, 0), schedule_key(fcfs, 0, 2, 0));
  EXPECT_LT(schedule_key(priority, 0, 2, 0), schedule_key(priority, 9, 1, 0));
  EXPECT_LT(schedule_key(priority, -5, 2, 0), schedule_key(priority, 0, 1, 0));
  EXPECT_LT(schedule_key(priority, 3, 1, 0), schedule_key(priority, 3, 2, 0));
  EXPECT_LT(schedule_key(fcfs, 0, 1, 0), schedule_key(fcfs, 0, 1, 1));
}

TEST(SchedulerOptions, NameTheFieldThatIsOutOfRange) {
  EXPECT_TRUE(SchedulerOptions{}.validate().has_value());
  SchedulerOptions options;
  options.max_num_batched_tokens = 0;
  EXPECT_THAT(options.validate().error().message(), HasSubstr("max-num-batched-tokens is 0"));
  options = {};
  options.max_num_seqs = -1;
  EXPECT_THAT(options.validate().error().message(), HasSubstr("max-num-seqs is -1"));
  options = {};
  options.max_prefill_tokens_beside_decodes = 0;
  EXPECT_FALSE(options.validate().has_value());
  options = {};
  options.decode_floor_tokens = -1;
  EXPECT_THAT(options.validate().error().message(), HasSubstr("decode-floor-tokens is -1"));
  options = {};
  options.decode_read_tokens = -1;
  EXPECT_THAT(options.validate().error().message(), HasSubstr("decode-read-tokens is -1"));
}

}  // namespace
}  // namespace karez
