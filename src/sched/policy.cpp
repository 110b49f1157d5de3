#include "sched/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace karez {

Expected<void> SchedulerOptions::validate() const {
  for (const auto& [field, value] :
       {std::pair<std::string_view, int>("max-num-batched-tokens", max_num_batched_tokens),
        std::pair<std::string_view, int>("max-num-seqs", max_num_seqs),
        std::pair<std::string_view, int>("max-prefill-tokens-beside-decodes",
                                         max_prefill_tokens_beside_decodes)}) {
    if (value < 1) {
      return fail(StatusCode::kInvalidArgument,
                  fmt::format("{} is {}, allowed are 1 and more", field, value));
    }
  }
  for (const auto& [field, value] :
       {std::pair<std::string_view, int>("decode-floor-tokens", decode_floor_tokens),
        std::pair<std::string_view, int>("decode-read-tokens", decode_read_tokens)}) {
    if (value < 0) {
      return fail(StatusCode::kInvalidArgument,
                  fmt::format("{} is {}, allowed are 0 and more", field, value));
    }
  }
  return {};
}

ScheduleKey schedule_key(SchedulingPolicy policy, int priority, std::uint64_t arrival, int choice) {
  return {policy == SchedulingPolicy::kPriority ? priority : 0, arrival, choice};
}

TokenShares divide_tokens(std::span<const int> remaining_tokens, std::span<const int> drafts,
                          const SchedulerOptions& options) {
  TokenShares shares;
  shares.tokens.resize(remaining_tokens.size());
  shares.drafts.resize(remaining_tokens.size());
  int left = options.max_num_batched_tokens;
  const bool first_is_prompt = !remaining_tokens.empty() && remaining_tokens.front() > 1;
  if (first_is_prompt) {
    --left;  // kept for it
  }
  bool decodes = false;
  for (std::size_t i = 0; i < remaining_tokens.size() && left > 0; ++i) {
    if (remaining_tokens[i] == 1) {
      shares.tokens[i] = 1;
      --left;
      decodes = true;
    }
  }
  int draft_rows = left / 2;
  for (std::size_t i = 0; i < drafts.size(); ++i) {
    if (remaining_tokens[i] == 1 && shares.tokens[i] == 1) {
      shares.drafts[i] = std::min(drafts[i], draft_rows);
      draft_rows -= shares.drafts[i];
      left -= shares.drafts[i];
    }
  }
  int prefill = left + (first_is_prompt ? 1 : 0);
  if (decodes) {
    prefill = std::min(prefill, options.max_prefill_tokens_beside_decodes);
  }
  for (std::size_t i = 0; i < remaining_tokens.size(); ++i) {
    if (remaining_tokens[i] > 1) {
      shares.tokens[i] = std::min(remaining_tokens[i], prefill);
      prefill -= shares.tokens[i];
    }
  }
  shares.prefill_left = prefill;
  return shares;
}

}  // namespace karez
