#include "engine/step_batch.h"

#include <utility>

#include "base/check.h"
#include "engine/sequence_tables.h"

namespace karez {

ForwardBatch make_batch(const StepPlan& plan, const KVCacheManager& kv, const KeyIndex* key_index,
                        bool dense_rows, WindowCompressor* compressor) {
  ForwardBatch batch;
  batch.key_index = key_index;
  batch.tokens.reserve(static_cast<std::size_t>(plan.num_tokens));
  for (const PlannedSequence& planned : plan.sequences) {
    SequenceRows rows;
    set_tables(rows, kv, planned.kv);
    if (planned.compression.scores_with_rows(planned.first_position, planned.num_rows())) {
      KAREZ_CHECK(compressor != nullptr, "somebody compresses");
      rows.queries = compressor->ring(planned.kv, planned.compression);
    }
    rows.first_position = planned.first_position;
    rows.num_rows = planned.num_rows();
    rows.num_hint_rows = planned.num_hints;
    if (key_index != nullptr && !dense_rows) {
      rows.first_sparse_position = planned.num_prompt_tokens;
    }
    rows.first_row = static_cast<int>(batch.tokens.size());
    batch.tokens.insert(batch.tokens.end(), planned.tokens.begin(), planned.tokens.end());
    batch.tokens.insert(batch.tokens.end(), planned.drafts.begin(), planned.drafts.end());
    const int end = rows.first_row + static_cast<int>(planned.tokens.size());
    batch.sequences.push_back(std::move(rows));
    if (planned.wants_logits) {
      for (int row = end - 1; row < end + planned.num_verified_drafts(); ++row) {
        batch.output_rows.push_back(row);
      }
    }
  }
  return batch;
}

}  // namespace karez
