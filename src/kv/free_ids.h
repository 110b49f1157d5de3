// Which of the ids 0 .. n-1 are free. Hands out the lowest free ids first, in ascending order.
//
// A bitmap and not a stack of ids: neighbours that are given back one by one, in any order, are
// neighbours again when they are next handed out, and it costs one bit an id.
//
// Thread: one owner thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace karez {

class FreeIds {
 public:
  // All ids are free.
  explicit FreeIds(std::int64_t num_ids);

  // The lowest free id. Requires: num_free() > 0.
  // Cost: amortised over the ids handed out, plus one pass over the bitmap for each time that an
  // id below all free ones was given back.
  std::uint32_t take();
  // The lowest four free ids that begin at a multiple of four, of which it gives the first. None:
  // no such four are free.
  std::optional<std::uint32_t> take_four();
  // Requires: id was taken.
  void give_back(std::uint32_t id);

  bool is_free(std::uint32_t id) const { return ((words_[id / 64] >> (id % 64)) & 1U) != 0; }
  std::int64_t size() const { return num_ids_; }
  std::int64_t num_free() const { return num_free_; }
  std::size_t metadata_bytes() const { return words_.capacity() * sizeof(std::uint64_t); }

 private:
  std::int64_t num_ids_;
  std::int64_t num_free_;
  std::vector<std::uint64_t> words_;  // bit id % 64 of word id / 64: free
  std::size_t first_word_ = 0;        // no word before it has a free id
};

}  // namespace karez
