#include "engine/step_batch.h"

#include <utility>

namespace karez {

ForwardBatch make_batch(const StepPlan& plan, const KVCacheManager& kv, const KeyIndex* key_index) {
  ForwardBatch batch;
  batch.key_index = key_index;
  batch.tokens.reserve(static_cast<std::size_t>(plan.num_tokens));
  const int num_groups = static_cast<int>(kv.layer_groups().size());
  for (const PlannedSequence& planned : plan.sequences) {
    SequenceRows rows;
    for (int group = 0; group < num_groups; ++group) {
      rows.tables.push_back(kv.table(planned.kv, group));
    }
    rows.first_position = planned.first_position;
    rows.num_rows = static_cast<int>(planned.tokens.size());
    if (key_index != nullptr) {
      rows.first_sparse_position = planned.num_prompt_tokens;
    }
    rows.first_row = static_cast<int>(batch.tokens.size());
    batch.tokens.insert(batch.tokens.end(), planned.tokens.begin(), planned.tokens.end());
    batch.sequences.push_back(std::move(rows));
    if (planned.wants_logits) {
      batch.output_rows.push_back(static_cast<int>(batch.tokens.size()) - 1);
    }
  }
  return batch;
}

}  // namespace karez
