#include "attention/recall.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>

#include "kv/block_layout.h"

namespace karez {
namespace {

// Keys of one block, f32 [16][head_dim].
void read_keys(const RecallShape& shape, const std::byte* slot, std::vector<float>& out) {
  const BlockLayout layout = BlockLayout::of(shape.type, shape.head_dim);
  const std::byte* keys = slot + layout.keys_offset;
  const auto* scales = reinterpret_cast<const float*>(slot + layout.key_scales_offset);
  std::size_t at = 0;
  for (int t = 0; t < kBlockSize; ++t) {
    for (int i = 0; i < shape.head_dim; ++i) {
      const std::size_t from = BlockLayout::key_index(shape.type, t, i);
      switch (shape.type) {
        case KvType::kF32:
          out[at++] = reinterpret_cast<const float*>(keys)[from];
          break;
        case KvType::kBf16:
          out[at++] = std::bit_cast<float>(
              std::uint32_t{reinterpret_cast<const std::uint16_t*>(keys)[from]} << 16);
          break;
        case KvType::kQ8_0:
          out[at++] =
              static_cast<float>(reinterpret_cast<const std::int8_t*>(keys)[from]) * scales[t];
          break;
      }
    }
  }
}

double score_of(const RecallShape& shape, const float* query, const float* key) {
  double score = 0.0;
  for (int i = 0; i < shape.head_dim; ++i) {
    score += static_cast<double>(query[i]) * static_cast<double>(key[i]);
  }
  score *= static_cast<double>(shape.scale);
  const auto cap = static_cast<double>(shape.softcap);
  return cap > 0.0 ? cap * std::tanh(score / cap) : score;
}

}  // namespace

std::vector<float> recalled_mass(const RecallShape& shape, const KVLayerView& view,
                                 BlockTableView table, int kv_head, int position,
                                 const float* query, std::span<const std::int32_t> selected) {
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  const auto group = static_cast<std::size_t>(shape.group);
  const auto num_tokens = static_cast<std::size_t>(position) + 1;
  std::vector<double> scores(group * num_tokens);
  std::vector<double> top(group, -std::numeric_limits<double>::infinity());
  std::vector<float> keys(std::size_t{kBlockSize} * dim);
  for (std::size_t first = 0; first < num_tokens; first += kBlockSize) {
    read_keys(shape, view.slot(kv_head, table[first / kBlockSize]), keys);
    const std::size_t end = std::min(num_tokens, first + kBlockSize);
    for (std::size_t h = 0; h < group; ++h) {
      for (std::size_t t = first; t < end; ++t) {
        const double score = score_of(shape, query + h * dim, &keys[(t - first) * dim]);
        scores[h * num_tokens + t] = score;
        top[h] = std::max(top[h], score);
      }
    }
  }
  std::vector<float> out;
  for (std::size_t h = 0; h < group; ++h) {
    const double* head = &scores[h * num_tokens];
    const auto mass_of = [&](std::size_t begin, std::size_t end) {
      double mass = 0.0;
      for (std::size_t t = begin; t < end; ++t) {
        mass += std::exp(head[t] - top[h]);
      }
      return mass;
    };
    double kept = 0.0;
    for (const std::int32_t block : selected) {
      const auto first = static_cast<std::size_t>(block) * kBlockSize;
      kept += mass_of(first, std::min(num_tokens, first + kBlockSize));
    }
    out.push_back(static_cast<float>(kept / mass_of(0, num_tokens)));
  }
  return out;
}

std::vector<RecallSummary> summarise_recall(std::span<const RecallSample> samples, int num_layers) {
  std::vector<std::vector<float>> masses(static_cast<std::size_t>(num_layers));
  for (const RecallSample& sample : samples) {
    masses[static_cast<std::size_t>(sample.layer)].push_back(sample.mass);
  }
  std::vector<RecallSummary> out;
  for (std::vector<float>& layer : masses) {
    RecallSummary& summary = out.emplace_back();
    if (layer.empty()) {
      continue;
    }
    std::sort(layer.begin(), layer.end());
    for (const float mass : layer) {
      summary.mean += static_cast<double>(mass);
    }
    summary.count = static_cast<std::int64_t>(layer.size());
    summary.mean /= static_cast<double>(layer.size());
    summary.p1 = static_cast<double>(layer[layer.size() / 100]);
    summary.worst = static_cast<double>(layer.front());
  }
  return out;
}

}  // namespace karez
