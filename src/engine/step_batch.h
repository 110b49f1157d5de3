// From the scheduler's plan to the model's input.
//
// Thread: a pure function.
#pragma once

#include "engine/window_compressor.h"
#include "kv/kv_cache_manager.h"
#include "model/forward_batch.h"
#include "sched/step_plan.h"

namespace karez {

// The plan's sequences in their order, drafts behind their tokens; one output row for each with
// wants_logits, and one for each draft to be verified. Rows behind the
// prompt are sparse where sparse attention is on. key_index: of kv's blocks, or null.
// The views are valid until the next change of kv.
// dense_rows: none are sparse. compressor: keeps the queries of sequences that are compressed;
// null: none is.
ForwardBatch make_batch(const StepPlan& plan, const KVCacheManager& kv, const KeyIndex* key_index,
                        bool dense_rows = false, WindowCompressor* compressor = nullptr);

}  // namespace karez
