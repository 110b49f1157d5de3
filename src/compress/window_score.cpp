#include "compress/window_score.h"

#include <algorithm>
#include <numbers>

#include "base/bf16.h"
#include "base/check.h"
#include "compress/window_keys.h"

namespace karez {
namespace {

AddWeights kernel_for([[maybe_unused]] CpuLevel level) {
#if defined(__x86_64__)
  if (level >= CpuLevel::kAvx512) {
    return add_weights_avx512;
  }
  if (level >= CpuLevel::kAvx2) {
    return add_weights_avx2;
  }
#endif
  return add_weights_portable;
}

// SplitMix64 (Steele, Lea, Flood 2014): one step from each state.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

// The upper 24 bits, which a float holds exactly.
float unit_interval(std::uint64_t bits) { return static_cast<float>(bits >> 40) * 0x1p-24F; }

// Widens and scales. False: it has a number that is not finite.
bool widen_query(const std::uint16_t* row, int head_dim, float gain, float* out) {
  constexpr std::uint16_t kExponent = 0x7f80;
  bool is_finite = true;
  for (int i = 0; i < head_dim; ++i) {
    out[i] = from_bf16(row[i]) * gain;
    is_finite &= (row[i] & kExponent) != kExponent;
  }
  return is_finite;
}

}  // namespace

WindowScorer::WindowScorer(CpuLevel level) : add_weights_(kernel_for(level)) {}

void WindowScorer::widen_keys(const WindowKeys& keys, bool with_sinks) {
  const std::size_t num_sinks = with_sinks ? keys.sinks.size() : 0;
  const auto head_dim = static_cast<std::size_t>(keys.head_dim);
  keys_.resize((keys.window.size() + num_sinks) * head_dim);
  hidden_.clear();
  for (std::size_t b = 0; b < keys.window.size() + num_sinks; ++b) {
    const std::byte* slot =
        b < keys.window.size() ? keys.window[b] : keys.sinks[b - keys.window.size()];
    const std::uint32_t bad =
        widen_block_keys(keys.type, keys.head_dim, slot, keys_[b * head_dim].lanes);
    for (int t = 0; bad != 0 && t < kBlockSize; ++t) {
      if ((bad >> t & 1U) != 0) {
        hidden_.push_back(static_cast<std::int32_t>(b) * kBlockSize + t);
      }
    }
  }
}

void WindowScorer::score_by_attention(CompressScore kind, const WindowKeys& keys,
                                      const WindowQueries& queries, std::span<float> out) {
  const bool with_sinks = kind != CompressScore::kLastQueries;
  const bool is_causal = kind != CompressScore::kBidirectional;
  const auto head_dim = static_cast<std::size_t>(keys.head_dim);
  widen_keys(keys, with_sinks);

  std::int32_t visible[kScoreTileQueries];
  ScoreTile tile{};
  tile.head_dim = keys.head_dim;
  tile.num_window_blocks = static_cast<int>(keys.window.size());
  tile.num_blocks = static_cast<int>(keys_.size() / head_dim);
  tile.keys = keys_.front().lanes;
  queries_.resize(kScoreTileQueries * head_dim);
  tile.queries = queries_.data();
  tile.visible = visible;
  tile.hidden = hidden_.data();
  tile.num_hidden = hidden_.size();
  constexpr float kLog2e = std::numbers::log2e_v<float>;
  tile.softcap = kLog2e * keys.softcap;
  const float gain =
      keys.softcap > 0 ? 2 * kLog2e * keys.scale / keys.softcap : kLog2e * keys.scale;
  scores_.resize(score_scratch_floats(static_cast<std::size_t>(tile.num_blocks)) / kBlockSize);
  tile.scores = scores_.front().lanes;
  tile.weights = out.data();

  int counted = 0;
  const std::size_t given = queries.rows.size();
  const std::size_t first = kind == CompressScore::kLastQueries && given > kLastQueries
                                ? given - kLastQueries
                                : std::size_t{0};
  for (std::size_t i = first; i < given; ++i) {
    const int window = static_cast<int>(out.size());
    const int seen =
        is_causal ? std::min(window, queries.positions[i] - keys.first_position + 1) : window;
    float* row = queries_.data() + static_cast<std::size_t>(tile.num_queries) * head_dim;
    if (seen > 0 && widen_query(queries.rows[i], keys.head_dim, gain, row)) {
      visible[tile.num_queries++] = seen;
    }
    if (tile.num_queries == kScoreTileQueries) {
      counted += add_weights_(tile);
      tile.num_queries = 0;
    }
  }
  if (tile.num_queries > 0) {
    counted += add_weights_(tile);
  }
  if (counted > 0) {
    for (float& x : out) {
      x /= static_cast<float>(counted);
    }
  }
}

void WindowScorer::score(CompressScore kind, const WindowKeys& keys, const WindowQueries& queries,
                         std::uint64_t seed, std::span<float> out) {
  KAREZ_CHECK(!out.empty() && out.size() == keys.window.size() * kBlockSize,
              "a score for each token");
  KAREZ_CHECK(queries.rows.size() == queries.positions.size(), "a position for each query");
  switch (kind) {
    case CompressScore::kBidirectional:
    case CompressScore::kCausal:
    case CompressScore::kLastQueries:
      std::ranges::fill(out, 0.0F);
      score_by_attention(kind, keys, queries, out);
      break;
    case CompressScore::kRecent:
      for (std::size_t t = 0; t < out.size(); ++t) {
        out[t] = static_cast<float>(t);
      }
      break;
    case CompressScore::kRandom:
      for (std::size_t t = 0; t < out.size(); ++t) {
        const std::uint64_t position = static_cast<std::uint64_t>(keys.first_position) + t;
        out[t] = unit_interval(mix(mix(seed) ^ position));
      }
      break;
  }
}

}  // namespace karez
