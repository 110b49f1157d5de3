#include "engine/working_set.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/sequence_tables.h"
#include "kv/residency.h"

namespace karez {

std::vector<ListedBlock> find_working_set(ModelRunner& runner, KVCacheManager& kv,
                                          const KeyIndex& key_index, BlockLoader& loader,
                                          SequenceId sequence, TokenId next) {
  const int num_tokens = kv.num_tokens(sequence);
  if (kv.residency() != nullptr) {
    // Layers that do not select read everything, for which what is at home already makes room.
    kv.write_home(sequence);
    kv.residency()->settle();
  }
  // Of the sequence itself one more token would let go of what is out of the window then.
  const std::optional<SequenceId> fork = kv.fork(sequence, num_tokens);
  if (!fork) {
    return {};
  }
  if (!kv.extend(*fork, 1)) {
    kv.close(*fork);
    return {};
  }
  ForwardBatch batch;
  batch.key_index = &key_index;
  SequenceRows rows;
  set_tables(rows, kv, *fork);
  rows.first_position = num_tokens;
  rows.num_rows = 1;
  rows.num_hint_rows = 1;
  rows.first_sparse_position = num_tokens;
  batch.sequences.push_back(std::move(rows));
  batch.tokens.push_back(next);
  batch.output_rows.push_back(0);  // without one the last layer does not select
  std::vector<ListedBlock> listed;
  loader.set_recorder(&listed);
  // As a draft of the model itself: of what it selects and finds it leaves nothing out.
  loader.begin_step(kv, batch.sequences, LookaheadSource::kSelf);
  const bool has_run = runner.forward(batch, kv).has_value();
  const bool is_lost = std::ranges::any_of(loader.end_step(), &BlockLoader::SequenceReads::is_lost);
  loader.set_recorder(nullptr);
  kv.close(*fork);
  if (!has_run || is_lost) {
    listed.clear();
  }
  return listed;
}

}  // namespace karez
