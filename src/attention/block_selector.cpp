#include "attention/block_selector.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
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

// The largest of [begin, end), first of equals; -1 if there is none that is a number.
int first_of_largest(std::span<const float> x, int begin, int end) {
  std::array<float, kLanes> best;
  best.fill(-std::numeric_limits<float>::infinity());
  int i = begin;
  for (; i + static_cast<int>(kLanes) <= end; i += static_cast<int>(kLanes)) {
    for (std::size_t j = 0; j < kLanes; ++j) {
      const float value = x[static_cast<std::size_t>(i) + j];
      best[j] = value > best[j] ? value : best[j];
    }
  }
  for (; i < end; ++i) {
    const float value = x[static_cast<std::size_t>(i)];
    best[0] = value > best[0] ? value : best[0];
  }
  const float largest = *std::max_element(best.begin(), best.end());
  for (int b = begin; b < end; ++b) {
    if (x[static_cast<std::size_t>(b)] == largest) {
      return b;
    }
  }
  return -1;
}

// Best block of a head among [begin, end), whose masses have different references by chunk.
int best_block(const HeadMasses& head, std::span<const float> factors, int chunk_blocks, int begin,
               int end) {
  int best = -1;
  float best_mass = 0.0F;
  for (int chunk = begin / chunk_blocks; chunk * chunk_blocks < end; ++chunk) {
    const int first = std::max(begin, chunk * chunk_blocks);
    const int last = std::min(end, (chunk + 1) * chunk_blocks);
    const int b = first_of_largest(head.masses, first, last);
    if (b < 0) {
      continue;
    }
    const float mass =
        head.masses[static_cast<std::size_t>(b)] * factors[static_cast<std::size_t>(chunk)];
    if (mass > best_mass) {
      best = b;
      best_mass = mass;
    }
  }
  return best;
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

struct Digit {
  std::uint32_t shift;
  std::uint32_t bits;
};
constexpr std::array<Digit, 3> kDigits = {{{21, 11}, {10, 11}, {0, 10}}};

// The k-th largest key, and how many of the keys equal to it are among the k largest.
struct Threshold {
  std::uint32_t key;
  std::uint32_t num_equal;
};

Threshold find_threshold(std::span<const std::uint32_t> keys, std::uint32_t k,
                         std::vector<std::uint32_t>& counts) {
  std::uint32_t prefix = 0;
  std::uint32_t mask = 0;
  for (const Digit& digit : kDigits) {
    const std::uint32_t size = 1U << digit.bits;
    counts.assign(size, 0U);
    for (const std::uint32_t key : keys) {
      if ((key & mask) == prefix) {
        ++counts[key >> digit.shift & (size - 1)];
      }
    }
    std::uint32_t value = size - 1;
    while (counts[value] < k) {
      k -= counts[value];
      --value;
    }
    prefix |= value << digit.shift;
    mask |= (size - 1) << digit.shift;
    if (counts[value] == k && digit.shift > 0) {
      // All with this prefix: the least of them is as good a threshold.
      std::uint32_t least = ~0U;
      for (const std::uint32_t key : keys) {
        least = (key & mask) == prefix && key < least ? key : least;
      }
      return {least, static_cast<std::uint32_t>(std::count(keys.begin(), keys.end(), least))};
    }
  }
  return {prefix, k};
}

}  // namespace

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
  scratch.scores.assign(num_blocks, 0.0F);
  scratch.factors.resize((num_blocks + chunk_size - 1) / chunk_size);
  scratch.best.clear();
  const float part = 1.0F / static_cast<float>(heads.size());
  for (const HeadMasses& head : heads) {
    share_factors(head, scratch.factors);
    for (std::size_t c = 0; c < scratch.factors.size(); ++c) {
      const float factor = scratch.factors[c] * part;
      const std::size_t first = c * chunk_size;
      const std::size_t count = std::min(chunk_size, num_blocks - first);
      float* scores = scratch.scores.data() + first;
      const float* masses = head.masses.data() + first;
      for (std::size_t i = 0; i < count; ++i) {
        scores[i] += masses[i] * factor;
      }
    }
    const int best =
        best_block(head, scratch.factors, chunk_blocks, shape.sink_blocks, shape.recent_begin);
    if (best >= 0) {
      scratch.best.push_back(best);
    }
  }
  for (const int best : scratch.best) {
    float& score = scratch.scores[static_cast<std::size_t>(best)];
    if (score < kForced) {
      score += kForced;
    }
  }
}

void top_k(std::span<const float> scores, int k, std::span<std::int32_t> out,
           SelectorScratch& scratch) {
  if (k == 0) {
    return;
  }
  scratch.keys.resize(scores.size());
  for (std::size_t i = 0; i < scores.size(); ++i) {
    scratch.keys[i] = order_key(scores[i]);
  }
  Threshold threshold = find_threshold(scratch.keys, static_cast<std::uint32_t>(k), scratch.counts);
  std::size_t count = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const std::uint32_t key = scratch.keys[i];
    if (key < threshold.key) {
      continue;
    }
    if (key == threshold.key) {
      if (threshold.num_equal == 0) {
        continue;
      }
      --threshold.num_equal;
    }
    out[count++] = static_cast<std::int32_t>(i);
  }
}

void select_blocks(const SelectionShape& shape, std::span<const HeadMasses> heads, int chunk_blocks,
                   SelectorScratch& scratch, std::span<std::int32_t> out) {
  std::size_t count = 0;
  const auto add_range = [&](int begin, int end) {
    for (int b = begin; b < end; ++b) {
      out[count++] = b;
    }
  };
  add_range(0, shape.sink_blocks);
  if (shape.selects_all()) {
    add_range(shape.sink_blocks, shape.recent_begin);
  } else if (shape.num_best > 0) {
    block_scores(shape, heads, chunk_blocks, scratch);
    const auto between = static_cast<std::size_t>(shape.recent_begin - shape.sink_blocks);
    const auto num_best = static_cast<std::size_t>(shape.num_best);
    top_k(std::span(scratch.scores).subspan(static_cast<std::size_t>(shape.sink_blocks), between),
          shape.num_best, out.subspan(count, num_best), scratch);
    for (std::size_t i = 0; i < num_best; ++i) {
      out[count++] += shape.sink_blocks;
    }
  }
  add_range(shape.recent_begin, shape.num_blocks);
}

}  // namespace karez
