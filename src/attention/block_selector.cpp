#include "attention/block_selector.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>

#include "kv/kv_types.h"

namespace karez {
namespace {

constexpr std::size_t kLanes = 16;
constexpr float kForced = 2.0F;  // scores are shares: at most 1

// Ascending as the numbers are; NaN is 0, below everything.
std::uint32_t order_key(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x + 0.0F);  // -0 becomes 0
  const std::uint32_t key = bits ^ ((0U - (bits >> 31)) | 0x80000000U);
  return x == x ? key : 0U;
}

void set_shares(const float* masses, float factor, float* scores, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    scores[i] = masses[i] * factor;
  }
}

void add_shares(const float* masses, float factor, float* scores, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    scores[i] += masses[i] * factor;
  }
}

float largest_of(const float* x, std::size_t count) {
  std::array<float, kLanes> best;
  best.fill(-std::numeric_limits<float>::infinity());
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) {
      best[j] = x[i + j] > best[j] ? x[i + j] : best[j];
    }
  }
  for (std::size_t j = 0; i + j < count; ++j) {
    best[j] = x[i + j] > best[j] ? x[i + j] : best[j];
  }
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) {
      best[j] = best[j + half] > best[j] ? best[j + half] : best[j];
    }
  }
  return best[0];
}

// Best block of a head among [begin, end), whose masses have different references by chunk; -1 if
// there is none with a mass. First of equals.
int best_block(const SelectKernels& kernels, const HeadMasses& head, std::span<const float> factors,
               int chunk_blocks, int begin, int end) {
  int best_chunk = -1;
  float best_mass = 0.0F;
  float largest = 0.0F;
  for (int chunk = begin / chunk_blocks; chunk * chunk_blocks < end; ++chunk) {
    const int first = std::max(begin, chunk * chunk_blocks);
    const int last = std::min(end, (chunk + 1) * chunk_blocks);
    const float mass =
        kernels.largest(head.masses.data() + first, static_cast<std::size_t>(last - first));
    const float share = mass * factors[static_cast<std::size_t>(chunk)];
    if (share > best_mass) {
      best_chunk = chunk;
      best_mass = share;
      largest = mass;
    }
  }
  if (best_chunk < 0) {
    return -1;
  }
  int block = std::max(begin, best_chunk * chunk_blocks);
  while (head.masses[static_cast<std::size_t>(block)] != largest) {
    ++block;
  }
  return block;
}

// factors[c]: what a mass of chunk c is multiplied by to be a share of the head's total.
void share_factors(const HeadMasses& head, std::span<float> factors) {
  float largest = -std::numeric_limits<float>::infinity();
  for (const float reference : head.references) {
    largest = std::max(largest, reference);
  }
  float total = 0.0F;
  for (std::size_t c = 0; c < factors.size(); ++c) {
    factors[c] = std::exp2(head.references[c] - largest);
    total += factors[c] * head.sums[c];
  }
  for (float& factor : factors) {
    factor /= total;
  }
}

// From the highest bits on; the first is the sign, the exponent and two bits of a float.
struct Digit {
  std::uint32_t shift;
  std::uint32_t bits;
};
constexpr std::array<Digit, 3> kDigits = {{{21, 11}, {10, 11}, {0, 10}}};
constexpr std::size_t kMaxDigits = std::size_t{1} << 11;
constexpr std::size_t kFewCandidates = 128;

// The k-th largest key, and how many of the keys equal to it are among the k largest.
struct Threshold {
  std::uint32_t key;
  std::uint32_t num_equal;
};

// By sorting: for few keys.
Threshold threshold_of_few(std::span<std::uint32_t> keys, std::uint32_t k) {
  const auto at = keys.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(keys.begin(), at, keys.end(), std::greater<>());
  const std::uint32_t key = *at;
  const auto larger =
      std::count_if(keys.begin(), at, [key](std::uint32_t other) { return other > key; });
  return {key, k - static_cast<std::uint32_t>(larger)};
}

// Radix selection: only keys with the right first digits stay candidates.
// candidates: [keys.size()], scratch.
Threshold find_threshold(std::span<const std::uint32_t> keys, std::uint32_t k,
                         std::uint32_t* candidates) {
  std::span<const std::uint32_t> left = keys;
  std::array<std::uint32_t, kMaxDigits> counts;
  for (const Digit& digit : kDigits) {
    const std::uint32_t mask = (1U << digit.bits) - 1;
    counts.fill(0);
    std::uint32_t value = 0;
    for (const std::uint32_t key : left) {
      const std::uint32_t at = key >> digit.shift & mask;
      ++counts[at];
      value = std::max(value, at);
    }
    while (counts[value] < k) {
      k -= counts[value];
      --value;
    }
    if (digit.shift == 0) {
      return {(left.front() & ~mask) | value, k};
    }
    // Without branches: which keys stay cannot be foreseen. May be in place.
    std::size_t count = 0;
    for (const std::uint32_t key : left) {
      candidates[count] = key;
      count += (key >> digit.shift & mask) == value ? 1U : 0U;
    }
    left = std::span(candidates, count);
    if (count <= kFewCandidates) {
      break;
    }
  }
  return threshold_of_few(std::span(candidates, left.size()), k);
}

void portable_top_k(const float* scores, std::size_t count, std::size_t k, std::int32_t* out,
                    std::uint32_t* keys, std::uint32_t* other_keys) {
  for (std::size_t i = 0; i < count; ++i) {
    keys[i] = order_key(scores[i]);
  }
  Threshold threshold =
      find_threshold(std::span(keys, count), static_cast<std::uint32_t>(k), other_keys);
  // Without branches, as above. Exactly k are taken, so the loop ends within the scores.
  std::size_t taken = 0;
  for (std::size_t i = 0; taken < k; ++i) {
    const std::uint32_t equal = keys[i] == threshold.key && threshold.num_equal > 0 ? 1 : 0;
    threshold.num_equal -= equal;
    out[taken] = static_cast<std::int32_t>(i);
    taken += (keys[i] > threshold.key ? 1U : 0U) | equal;
  }
}

}  // namespace

constinit const SelectKernels kPortableSelectKernels = {set_shares, add_shares, largest_of,
                                                        portable_top_k};

SelectionShape selection_shape(const SelectionRule& rule, int position) {
  SelectionShape shape;
  shape.num_blocks = position / kBlockSize + 1;
  const int first_recent = position - std::max(rule.recent_window, 1) + 1;
  shape.recent_begin = first_recent > 0 ? first_recent / kBlockSize : 0;
  shape.sink_blocks =
      std::min(shape.recent_begin, (std::max(rule.sink_tokens, 0) + kBlockSize - 1) / kBlockSize);
  const int between = shape.recent_begin - shape.sink_blocks;
  const int always = shape.num_blocks - between;
  const bool whole = position < rule.token_budget;
  shape.num_best =
      whole ? between : std::clamp(rule.token_budget / kBlockSize - always, 0, between);
  return shape;
}

void block_scores(const SelectionShape& shape, std::span<const HeadMasses> heads, int chunk_blocks,
                  SelectorScratch& scratch) {
  const auto num_blocks = static_cast<std::size_t>(shape.num_blocks);
  const auto chunk_size = static_cast<std::size_t>(chunk_blocks);
  const SelectKernels& kernels = *scratch.kernels;
  scratch.scores.resize(num_blocks);
  scratch.factors.resize((num_blocks + chunk_size - 1) / chunk_size);
  scratch.best.clear();
  const float part = 1.0F / static_cast<float>(heads.size());
  bool is_first = true;
  for (const HeadMasses& head : heads) {
    share_factors(head, scratch.factors);
    for (std::size_t c = 0; c < scratch.factors.size(); ++c) {
      const float factor = scratch.factors[c] * part;
      const std::size_t first = c * chunk_size;
      const std::size_t count = std::min(chunk_size, num_blocks - first);
      float* scores = scratch.scores.data() + first;
      const float* masses = head.masses.data() + first;
      (is_first ? kernels.set_shares : kernels.add_shares)(masses, factor, scores, count);
    }
    is_first = false;
    const int best = best_block(kernels, head, scratch.factors, chunk_blocks, shape.sink_blocks,
                                shape.recent_begin);
    if (best >= 0) {
      scratch.best.push_back(best);
    }
  }
  scratch.forced.clear();
  for (const int best : scratch.best) {
    float& score = scratch.scores[static_cast<std::size_t>(best)];
    if (score < kForced) {
      scratch.forced.push_back({best, score});
      score += kForced;
    }
  }
}

void top_k(std::span<const float> scores, int k, std::span<std::int32_t> out,
           SelectorScratch& scratch) {
  if (k == 0) {
    return;
  }
  scratch.keys.resize(std::max(scratch.keys.size(), scores.size() + kTopKSlack));
  scratch.candidates.resize(scratch.keys.size());
  scratch.kernels->top_k(scores.data(), scores.size(), static_cast<std::size_t>(k), out.data(),
                         scratch.keys.data(), scratch.candidates.data());
}

namespace {

// The blocks in between: the best ones in `out`, ascending, and those that come next. One search
// finds both; which of them are the best is then a search among few.
void choose(const SelectionShape& shape, SelectorScratch& scratch, std::span<std::int32_t> out,
            std::span<std::int32_t> runners_up) {
  const auto first = static_cast<std::size_t>(shape.sink_blocks);
  const auto scores = std::span<const float>(scratch.scores)
                          .subspan(first, static_cast<std::size_t>(shape.recent_begin) - first);
  if (runners_up.empty()) {
    top_k(scores, shape.num_best, out, scratch);
  } else {
    const std::size_t count = out.size() + runners_up.size();
    std::vector<std::int32_t>& ranked = scratch.ranked;
    ranked.resize(count);
    scratch.ranked_scores.resize(count);
    top_k(scores, static_cast<int>(count), ranked, scratch);
    for (std::size_t i = 0; i < count; ++i) {
      scratch.ranked_scores[i] = scores[static_cast<std::size_t>(ranked[i])];
    }
    top_k(scratch.ranked_scores, shape.num_best, out, scratch);
    std::size_t taken = 0;
    std::size_t left = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (taken < out.size() && out[taken] == static_cast<std::int32_t>(i)) {
        out[taken++] = ranked[i];
      } else {
        runners_up[left++] = ranked[i];
      }
    }
    std::ranges::stable_sort(runners_up, std::greater<>(), [scores](std::int32_t block) {
      return order_key(scores[static_cast<std::size_t>(block)]);
    });
  }
  for (const std::span<std::int32_t> blocks : {out, runners_up}) {
    for (std::int32_t& block : blocks) {
      block += shape.sink_blocks;
    }
  }
}

}  // namespace

void select_blocks(const SelectionShape& shape, std::span<const HeadMasses> heads, int chunk_blocks,
                   SelectorScratch& scratch, std::span<std::int32_t> out,
                   const SelectionExtras& extras) {
  std::size_t count = 0;
  const auto add_range = [&](int begin, int end) {
    for (int b = begin; b < end; ++b) {
      out[count++] = b;
    }
  };
  const bool chooses = shape.num_best > 0 && !shape.selects_all();
  if (chooses || !extras.masses.empty() || !extras.runners_up.empty()) {
    block_scores(shape, heads, chunk_blocks, scratch);
  }
  add_range(0, shape.sink_blocks);
  if (shape.selects_all()) {
    add_range(shape.sink_blocks, shape.recent_begin);
  } else if (chooses || !extras.runners_up.empty()) {
    const auto num_best = static_cast<std::size_t>(shape.num_best);
    choose(shape, scratch, out.subspan(count, num_best), extras.runners_up);
    count += num_best;
  }
  add_range(shape.recent_begin, shape.num_blocks);
  if (extras.masses.empty()) {
    return;
  }
  for (const SelectorScratch::Forced& forced : scratch.forced) {
    scratch.scores[static_cast<std::size_t>(forced.block)] = forced.score;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const float mass = scratch.scores[static_cast<std::size_t>(out[i])];
    extras.masses[i] = mass > 0.0F ? std::min(mass, 1.0F) : 0.0F;  // NaN is none
  }
}

}  // namespace karez
