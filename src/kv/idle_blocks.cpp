#include "kv/idle_blocks.h"

#include "base/check.h"

namespace karez {

void IdleBlocks::push_newest(BlockId block) {
  KAREZ_CHECK(!contains(block), "the block is idle already");
  links_[block.value] = Links{newest_, BlockId::none()};
  if (newest_.is_none()) {
    oldest_ = block;
  } else {
    links_[newest_.value].newer = block;
  }
  newest_ = block;
}

void IdleBlocks::remove(BlockId block) {
  KAREZ_CHECK(contains(block), "the block is not idle");
  const Links links = links_[block.value];
  (links.older.is_none() ? oldest_ : links_[links.older.value].newer) = links.newer;
  (links.newer.is_none() ? newest_ : links_[links.newer.value].older) = links.older;
  links_[block.value] = Links{};
}

}  // namespace karez
