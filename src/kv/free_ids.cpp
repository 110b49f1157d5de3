#include "kv/free_ids.h"

#include <bit>

#include "base/check.h"

namespace karez {

FreeIds::FreeIds(std::int64_t num_ids)
    : num_ids_(num_ids),
      num_free_(num_ids),
      words_(static_cast<std::size_t>((num_ids + 63) / 64), ~std::uint64_t{0}) {
  if (num_ids % 64 != 0) {
    words_.back() = (std::uint64_t{1} << (num_ids % 64)) - 1;
  }
}

std::uint32_t FreeIds::take() {
  KAREZ_CHECK(num_free_ > 0, "no id is free");
  while (words_[first_word_] == 0) {
    ++first_word_;
  }
  std::uint64_t& word = words_[first_word_];
  const int bit = std::countr_zero(word);
  word &= word - 1;  // clears the lowest set bit
  --num_free_;
  return static_cast<std::uint32_t>(first_word_ * 64 + static_cast<std::size_t>(bit));
}

std::optional<std::uint32_t> FreeIds::take_four() {
  constexpr std::uint64_t kFirstOfFour = 0x1111'1111'1111'1111;
  for (std::size_t i = first_word_; i < words_.size(); ++i) {
    std::uint64_t& word = words_[i];
    const std::uint64_t whole = word & (word >> 1) & (word >> 2) & (word >> 3) & kFirstOfFour;
    if (whole != 0) {
      const int bit = std::countr_zero(whole);
      word &= ~(std::uint64_t{0xF} << bit);
      num_free_ -= 4;
      return static_cast<std::uint32_t>(i * 64 + static_cast<std::size_t>(bit));
    }
  }
  return std::nullopt;
}

void FreeIds::give_back(std::uint32_t id) {
  KAREZ_CHECK(id < num_ids_, "the id is not one of this set");
  KAREZ_CHECK(!is_free(id), "the id is given back twice");
  const std::size_t word = id / 64;
  words_[word] |= std::uint64_t{1} << (id % 64);
  ++num_free_;
  if (word < first_word_) {
    first_word_ = word;
  }
}

}  // namespace karez
