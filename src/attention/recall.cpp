#include "attention/recall.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "attention/archive_page.h"
#include "attention/block_store.h"

namespace karez {
namespace {

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
                                 BlockTableView table, int kv_head, int place, const float* query,
                                 std::span<const std::int32_t> selected,
                                 const ArchivedEntries& archived) {
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  const auto group = static_cast<std::size_t>(shape.group);
  const auto num_tokens = static_cast<std::size_t>(place) + 1;
  std::vector<double> scores(group * num_tokens);
  std::vector<double> top(group, -std::numeric_limits<double>::infinity());
  std::vector<float> keys(std::size_t{kBlockSize} * dim);
  for (std::size_t first = 0; first < num_tokens; first += kBlockSize) {
    const auto entry = static_cast<int>(first / kBlockSize);
    const std::byte* slot = view.slot(kv_head, table[first / kBlockSize]);
    if (archived.contains(entry)) {
      decode_archive_page(shape.head_dim,
                          slot + archive_page_offset(shape.head_dim, archived.page_of(entry)),
                          keys.data(), nullptr);
    } else {
      load_block_keys(shape.type, shape.head_dim, slot, keys.data());
    }
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
