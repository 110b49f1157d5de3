// StrongId<Tag>: an index that cannot be mixed up with another kind of index.
//
// A strong id is a plain 32-bit number in memory, so arrays of ids are arrays of numbers.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <limits>

namespace karez {

template <typename Tag>
struct StrongId {
  static constexpr std::uint32_t kNoneValue = std::numeric_limits<std::uint32_t>::max();

  std::uint32_t value = kNoneValue;

  constexpr StrongId() = default;
  constexpr explicit StrongId(std::uint32_t v) : value(v) {}

  // The id of nothing: "no slot here", "no block here".
  static constexpr StrongId none() { return StrongId(); }
  constexpr bool is_none() const { return value == kNoneValue; }

  friend constexpr auto operator<=>(StrongId, StrongId) = default;
};

}  // namespace karez

template <typename Tag>
struct std::hash<karez::StrongId<Tag>> {
  std::size_t operator()(karez::StrongId<Tag> id) const noexcept {
    return std::hash<std::uint32_t>{}(id.value);
  }
};
