#include "support/reference_attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace karez::test {
namespace {

constexpr int kTokensOfBlock = 16;

}  // namespace

std::vector<float> reference_attention(const ReferenceShape& shape, const ReferenceTokens& tokens,
                                       std::span<const float> query, int position,
                                       std::span<const std::span<const std::int32_t>> blocks) {
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  const auto kv_heads = static_cast<std::size_t>(shape.num_kv_heads);
  const auto heads = static_cast<std::size_t>(shape.num_heads);
  const int first = shape.window > 0 ? std::max(0, position - shape.window + 1) : 0;
  std::vector<float> out(heads * dim);
  for (std::size_t h = 0; h < heads; ++h) {
    const std::size_t kv_head = h / (heads / kv_heads);
    std::vector<int> positions;
    for (int p = first; p <= position; ++p) {
      if (blocks.empty() || std::find(blocks[kv_head].begin(), blocks[kv_head].end(),
                                      p / kTokensOfBlock) != blocks[kv_head].end()) {
        positions.push_back(p);
      }
    }
    std::vector<double> scores;
    double top = -INFINITY;
    for (const int p : positions) {
      const std::size_t at = (static_cast<std::size_t>(p) * kv_heads + kv_head) * dim;
      double score = 0.0;
      for (std::size_t i = 0; i < dim; ++i) {
        score += static_cast<double>(query[h * dim + i]) * static_cast<double>(tokens.keys[at + i]);
      }
      score *= shape.scale;
      if (shape.softcap > 0.0) {
        score = shape.softcap * std::tanh(score / shape.softcap);
      }
      scores.push_back(score);
      top = std::max(top, score);
    }
    double sum = 0.0;
    std::vector<double> weighted(dim, 0.0);
    for (std::size_t j = 0; j < positions.size(); ++j) {
      const double weight = std::exp(scores[j] - top);
      const std::size_t at = (static_cast<std::size_t>(positions[j]) * kv_heads + kv_head) * dim;
      sum += weight;
      for (std::size_t i = 0; i < dim; ++i) {
        weighted[i] += weight * static_cast<double>(tokens.values[at + i]);
      }
    }
    for (std::size_t i = 0; i < dim; ++i) {
      out[h * dim + i] = static_cast<float>(weighted[i] / sum);
    }
  }
  return out;
}

float through_bf16(float x) {
  // The nearest of the two neighbours with 8 significant bits; the even one in the middle.
  int exponent = 0;
  const float fraction = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), exponent - 8);
}

std::vector<float> through_q8_0(std::span<const float> head) {
  float largest = 0.0F;
  for (const float x : head) {
    largest = std::max(largest, std::fabs(x));
  }
  const float scale = largest / 127.0F;
  std::vector<float> out;
  for (const float x : head) {
    out.push_back(scale > 0.0F ? std::nearbyint(x / scale) * scale : 0.0F);
  }
  return out;
}

}  // namespace karez::test
