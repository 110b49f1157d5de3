// Where a guess comes from which blocks are needed next, and how people write a choice of such
// sources. Names only: who asks which query is the engine's to know.
//
// Thread: values.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace karez {

enum class LookaheadSource : std::uint8_t {
  kPrevious,  // the query just used
  kDraft,     // queries of drafted rows that are verified in this step
  kProbe,     // a row that is computed for the guess alone (OasisKV)
  kSelf,      // the queries of a draft by the model itself on what is resident
  kLayer,     // the same token's query of the next layer, estimated one layer early (InfiniGen)
};
inline constexpr int kNumLookaheadSources = 5;
inline constexpr std::array<LookaheadSource, kNumLookaheadSources> kLookaheadSources = {
    LookaheadSource::kPrevious, LookaheadSource::kDraft, LookaheadSource::kProbe,
    LookaheadSource::kSelf, LookaheadSource::kLayer};

// "previous", "draft", "probe", "self", "layer".
std::string_view to_string(LookaheadSource source);

// A set of sources; empty: off.
class LookaheadSources {
 public:
  void add(LookaheadSource source) {
    bits_ = static_cast<std::uint8_t>(bits_ | 1U << static_cast<unsigned>(source));
  }
  bool contains(LookaheadSource source) const {
    return (bits_ >> static_cast<unsigned>(source) & 1U) != 0;
  }
  bool is_empty() const { return bits_ == 0; }

  friend bool operator==(const LookaheadSources&, const LookaheadSources&) = default;

 private:
  std::uint8_t bits_ = 0;
};

// "off", or the names in the order above, with commas between.
std::string to_string(const LookaheadSources& sources);
// Fails: kInvalidArgument with the names that are allowed.
Expected<LookaheadSources> parse_lookahead(std::string_view text);

}  // namespace karez
