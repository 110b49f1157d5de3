#include "kv/kv_cache_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "kv/block_layout.h"
#include "kv/window_blocks.h"

namespace karez {

namespace {

Expected<void> check_range(const char* field, int value, int low, int high) {
  if (value < low || value > high) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("{} is {}, allowed are {} to {}", field, value, low, high));
  }
  return {};
}

Expected<void> check_windows(const KVCacheSpec& spec) {
  const std::vector<int>& windows = spec.layer_windows;
  if (!windows.empty() && windows.size() != static_cast<std::size_t>(spec.num_layers)) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("layer_windows has {} entries, allowed are none or one for each of the "
                            "{} layers",
                            windows.size(), spec.num_layers));
  }
  for (std::size_t layer = 0; layer < windows.size(); ++layer) {
    if (windows[layer] < 0) {
      return fail(StatusCode::kInvalidArgument,
                  fmt::format("layer_windows[{}] is {}, allowed are 0 (all tokens) and more", layer,
                              windows[layer]));
    }
  }
  std::vector<int> distinct = windows;
  std::sort(distinct.begin(), distinct.end());
  const auto count = std::unique(distinct.begin(), distinct.end()) - distinct.begin();
  if (count > kMaxLayerGroups) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("layer_windows has {} different windows, allowed are at most {}", count,
                            kMaxLayerGroups));
  }
  return {};
}

// a + b * c for values >= 0, or the largest number if that does not fit.
std::int64_t saturating_add_product(std::int64_t a, std::int64_t b, std::int64_t c) {
  std::int64_t product = 0;
  std::int64_t sum = 0;
  if (__builtin_mul_overflow(b, c, &product) || __builtin_add_overflow(a, product, &sum)) {
    return std::numeric_limits<std::int64_t>::max();
  }
  return sum;
}

}  // namespace

Expected<void> KVCacheSpec::validate() const {
  constexpr int kMaxLayers = 1024;
  constexpr int kMaxHeads = 1024;
  constexpr int kMaxHeadDim = 512;
  if (auto ok = check_range("num_layers", num_layers, 1, kMaxLayers); !ok) {
    return ok;
  }
  if (auto ok = check_range("num_kv_heads", num_kv_heads, 1, kMaxHeads); !ok) {
    return ok;
  }
  if (head_dim < 16 || head_dim > kMaxHeadDim || head_dim % 16 != 0) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("head_dim is {}, allowed are multiples of 16 from 16 to {}", head_dim,
                            kMaxHeadDim));
  }
  return check_windows(*this);
}

std::vector<LayerGroup> KVCacheSpec::layer_groups() const {
  std::vector<LayerGroup> groups;
  for (int layer = 0; layer < num_layers; ++layer) {
    const int window = layer_windows.empty() ? 0 : layer_windows[static_cast<std::size_t>(layer)];
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const LayerGroup& g) { return g.window == window; });
    if (group == groups.end()) {
      group = groups.insert(groups.end(), LayerGroup{window, {}});
    }
    group->layers.push_back(layer);
  }
  return groups;
}

std::size_t KVCacheSpec::slot_bytes() const { return BlockLayout::of(type, head_dim).slot_bytes; }

std::size_t KVCacheSpec::bytes_per_token() const {
  const auto full_layers = layer_windows.empty()
                               ? static_cast<std::ptrdiff_t>(num_layers)
                               : std::count(layer_windows.begin(), layer_windows.end(), 0);
  return static_cast<std::size_t>(full_layers) * static_cast<std::size_t>(num_kv_heads) *
         slot_bytes() / kBlockSize;
}

std::int64_t KVCacheSpec::slots_for_sequence(std::int64_t num_tokens,
                                             std::int64_t step_tokens) const {
  KAREZ_CHECK(num_tokens >= 0 && step_tokens > 0, "a sequence grows in steps of tokens");
  if (num_tokens == 0) {
    return 0;
  }
  const std::vector<LayerGroup> groups = layer_groups();
  const std::int64_t step = std::min(step_tokens, num_tokens);
  // With P steps more, P * step a multiple of the block size, a group holds at least as many blocks
  // as before: what a window lets go is never more than what was added. So one of the last P full
  // steps is the peak of all full steps, and only the last, shorter step remains to be looked at.
  const std::int64_t period = kBlockSize / std::gcd<std::int64_t>(step, kBlockSize);
  const std::int64_t last = (num_tokens - 1) / step;
  std::int64_t peak = 0;
  for (std::int64_t i = std::max<std::int64_t>(0, last - period); i <= last; ++i) {
    const std::int64_t begin = i * step;
    const std::int64_t end = num_tokens - begin <= step ? num_tokens : begin + step;
    std::int64_t slots = 0;
    for (const LayerGroup& group : groups) {
      const std::int64_t blocks = num_blocks(end) - first_kept_block(begin, group.window);
      slots = saturating_add_product(slots, blocks,
                                     static_cast<std::int64_t>(group.layers.size()) * num_kv_heads);
    }
    peak = std::max(peak, slots);
  }
  return peak;
}

std::int64_t KVCacheSpec::most_step_tokens(std::int64_t num_tokens, std::int64_t read_tokens,
                                           std::int64_t slots) const {
  const bool has_full_layers = layer_windows.empty() || std::ranges::count(layer_windows, 0) > 0;
  const int widest = layer_windows.empty() ? 0 : std::ranges::max(layer_windows);
  std::int64_t read = has_full_layers ? read_tokens : 0;
  if (widest > 0) {
    read = std::max(read, std::min(num_tokens, widest + std::int64_t{kBlockSize}));
  }
  const std::int64_t left = slots - num_kv_heads * (read / kBlockSize);
  const std::int64_t blocks = left / (std::int64_t{num_layers} * num_kv_heads);
  return std::max<std::int64_t>(0, blocks * kBlockSize - num_tokens % kBlockSize);
}

}  // namespace karez
