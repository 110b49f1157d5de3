#include "engine/sequence_tables.h"

namespace karez {

void set_tables(SequenceRows& rows, const KVCacheManager& kv, SequenceId sequence) {
  rows.tables.clear();
  for (std::size_t group = 0; group < kv.layer_groups().size(); ++group) {
    rows.tables.push_back(kv.table(sequence, static_cast<int>(group)));
  }
  rows.num_gone = kv.num_gone(sequence);
  rows.archived = kv.archived(sequence);
}

}  // namespace karez
