// The working set of a computed prompt: the blocks that its first decode row reads, those that it
// selects and those of layers where it does not.
//
// Found by running that row, with the token that follows most likely: what it selects is asked of
// its own queries, and not guessed from those before it. Nothing is kept of the row but the lists.
// A hint row, so where it selects it waits for no block: one whose keys and values are partly below
// the fast tier asks less well. (OasisKV, arXiv 2608.08097: lookahead tokens name the working set.)
// Thread: the store's owner, between steps. The runner's logits of the last step are overwritten.
#pragma once

#include <span>
#include <vector>

#include "attention/key_index.h"
#include "engine/block_loader.h"
#include "engine/wanted_blocks.h"
#include "kv/kv_cache_manager.h"
#include "model/model_runner.h"

namespace karez {

// loader: the runner's selection listener. next: the token behind the sequence, which stays as it
// is. Empty: there are no slots for the row, or it failed.
std::vector<ListedBlock> find_working_set(ModelRunner& runner, KVCacheManager& kv,
                                          const KeyIndex& key_index, BlockLoader& loader,
                                          SequenceId sequence, TokenId next);

}  // namespace karez
