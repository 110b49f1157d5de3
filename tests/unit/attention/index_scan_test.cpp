// The scan kernels of all CPU levels against decoded records, in f64.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "attention/index_query.h"
#include "attention/key_index.h"
#include "kv/block_layout.h"

namespace karez {
namespace {

constexpr KeyIndexKind kKinds[] = {KeyIndexKind::kR2, KeyIndexKind::kR3, KeyIndexKind::kMinMax,
                                   KeyIndexKind::kMean};

struct Case {
  int head_dim;
  int group;
  int num_blocks;
  int last_tokens;
};
constexpr Case kCases[] = {{64, 3, 64, 16}, {64, 1, 1, 5},    {80, 4, 17, 1},  {128, 7, 16, 16},
                           {256, 8, 33, 9}, {48, 2, 5, 15},   {16, 5, 64, 2},  {112, 32, 3, 16},
                           {64, 6, 63, 7},  {512, 1, 31, 16}, {96, 4, 48, 16}, {32, 3, 2, 1}};

struct Masses {
  std::vector<double> shares;  // [group][num_blocks], of the whole of the head
};

class ScanInput {
 public:
  ScanInput(KeyIndexKind kind, const Case& c) : kind_(kind), case_(c) {
    std::mt19937 random(static_cast<unsigned>(c.head_dim * 100 + c.num_blocks));
    std::normal_distribution<float> normal;
    const auto dim = static_cast<std::size_t>(c.head_dim);
    queries_.resize(static_cast<std::size_t>(c.group) * dim);
    for (float& x : queries_) {
      x = normal(random);
    }
    const std::size_t bytes = key_index_block_bytes(kind, c.head_dim);
    records_.resize(static_cast<std::size_t>(c.num_blocks) * bytes);
    std::vector<float> keys(std::size_t{kBlockSize} * dim);
    std::vector<std::byte> slot(BlockLayout::of(KvType::kF32, c.head_dim).slot_bytes);
    for (int b = 0; b < c.num_blocks; ++b) {
      for (float& x : keys) {
        x = normal(random);
      }
      std::byte* record = records_.data() + static_cast<std::size_t>(b) * bytes;
      if (codes_tokens(kind)) {
        index_tokens(kind, c.head_dim, record, 0, kBlockSize, {keys.data(), dim}, nullptr);
      } else {
        store_in_block(KvType::kF32, c.head_dim, slot.data(), 0, kBlockSize, {keys.data(), dim},
                       {keys.data(), dim});
        index_block(kind, c.head_dim, record, KvType::kF32, slot.data());
      }
    }
  }

  // Shares as a kernel gives them. Every float behind them must stay as it was.
  std::vector<double> shares(CpuLevel level) const {
    const auto group = static_cast<std::size_t>(case_.group);
    const auto num_blocks = static_cast<std::size_t>(case_.num_blocks);
    const std::size_t stride = (num_blocks + 15) / 16 * 16;
    IndexQueries queries(case_.group, case_.head_dim);
    queries.prepare(kind_, queries_.data(), scale());
    std::vector<float> masses(group * stride + 1, -7.0F);
    std::vector<float> references(group);
    std::vector<float> sums(group);
    std::vector<float> scores(std::size_t{kScanVectors} * kScanBlocks * kBlockSize);
    IndexScan(level, kind_)
        .run(queries.view(), chunk(), scores.data(),
             {masses.data(), stride, references.data(), sums.data(), 1});
    EXPECT_EQ(masses.back(), -7.0F);
    std::vector<double> out;
    for (std::size_t v = 0; v < group; ++v) {
      double total = 0.0;
      for (std::size_t b = 0; b < num_blocks; ++b) {
        total += static_cast<double>(masses[v * stride + b]);
      }
      EXPECT_NEAR(static_cast<double>(sums[v]), total, 1e-4 * total + 1e-30);
      for (std::size_t b = 0; b < num_blocks; ++b) {
        out.push_back(static_cast<double>(masses[v * stride + b]) / (total > 0.0 ? total : 1.0));
      }
    }
    return out;
  }

  // The same in f64 from what the records hold, one token (or block) after the other.
  std::vector<double> expected() const {
    IndexQueries queries(case_.group, case_.head_dim);
    queries.prepare(kind_, queries_.data(), scale());
    const IndexQuery view = queries.view();
    std::vector<double> out;
    for (int v = 0; v < case_.group; ++v) {
      std::vector<std::vector<double>> scores(static_cast<std::size_t>(case_.num_blocks));
      double top = -INFINITY;
      for (int b = 0; b < case_.num_blocks; ++b) {
        const bool cut = b + 1 == case_.num_blocks && case_.last_tokens < kBlockSize;
        const int count = codes_tokens(kind_) ? (cut ? case_.last_tokens : kBlockSize) : !cut;
        for (int t = 0; t < count; ++t) {
          const double score = codes_tokens(kind_) ? token_score(view, v, record(b), t)
                                                   : block_score(view, v, record(b));
          scores[static_cast<std::size_t>(b)].push_back(score);
          top = std::max(top, score);
        }
      }
      std::vector<double> masses;
      double total = 0.0;
      for (const std::vector<double>& block : scores) {
        double mass = 0.0;
        for (const double score : block) {
          mass += std::exp2(score - top);
        }
        masses.push_back(mass);
        total += mass;
      }
      for (const double mass : masses) {
        out.push_back(mass / (total > 0.0 ? total : 1.0));
      }
    }
    return out;
  }

 private:
  float scale() const { return 2.0F / std::sqrt(static_cast<float>(case_.head_dim)); }
  const std::byte* record(int b) const {
    return records_.data() +
           static_cast<std::size_t>(b) * key_index_block_bytes(kind_, case_.head_dim);
  }
  IndexChunk chunk() const {
    IndexChunk out{};
    out.num_blocks = case_.num_blocks;
    out.last_tokens = case_.last_tokens;
    out.num_records = case_.num_blocks;
    for (int b = 0; b < case_.num_blocks; ++b) {
      out.records[b] = record(b);
    }
    return out;
  }
  static double bf16_at(const std::byte* p, int index) {
    std::uint16_t half;
    std::memcpy(&half, p + std::ptrdiff_t{2} * index, sizeof half);
    const std::uint32_t word = std::uint32_t{half} << 16;
    float out;
    std::memcpy(&out, &word, sizeof out);
    return static_cast<double>(out);
  }
  double token_score(const IndexQuery& query, int v, const std::byte* record, int t) const {
    const KeyIndexLayout layout = KeyIndexLayout::of(kind_, case_.head_dim);
    const auto word = [](const std::byte* line, int token) {
      std::uint32_t out;
      std::memcpy(&out, line + std::ptrdiff_t{4} * token, sizeof out);
      return out;
    };
    double sum = 0.0;
    for (int i = 0; i < case_.head_dim; ++i) {
      const int g = i / 16;
      const int shift = 2 * (i % 16 / 4) + 8 * (i % 4);
      std::uint32_t code = word(record + std::ptrdiff_t{64} * g, t) >> shift & 3U;
      if (kind_ == KeyIndexKind::kR3) {
        const std::byte* high = record + layout.high_bits_offset + std::ptrdiff_t{64} * (g / 2);
        code |= (word(high, t) >> (4 * (g % 2) + i % 16 / 4 + 8 * (i % 4)) & 1U) << 2;
      }
      sum += (static_cast<double>(code) - static_cast<double>(code_offset(kind_))) *
             query.codes[v * case_.head_dim + i];
    }
    return sum * static_cast<double>(query.factors[v]) * bf16_at(record + layout.scales_offset, t);
  }
  double block_score(const IndexQuery& query, int v, const std::byte* record) const {
    double sum = 0.0;
    for (int i = 0; i < case_.head_dim; ++i) {
      const auto q = static_cast<double>(query.queries[v * case_.head_dim + i]);
      const double first = q * bf16_at(record, i);
      sum += kind_ == KeyIndexKind::kMean
                 ? first
                 : std::max(first, q * bf16_at(record, case_.head_dim + i));
    }
    return sum;
  }

  KeyIndexKind kind_;
  Case case_;
  std::vector<float> queries_;
  std::vector<std::byte> records_;
};

TEST(IndexScan, KernelsOfAllLevelsGiveTheMassesOfTheDecodedRecords) {
  for (const KeyIndexKind kind : kKinds) {
    for (const Case& c : kCases) {
      const ScanInput input(kind, c);
      const std::vector<double> expected = input.expected();
      for (const CpuLevel level : supported_cpu_levels()) {
        const std::vector<double> shares = input.shares(level);
        ASSERT_EQ(shares.size(), expected.size());
        for (std::size_t i = 0; i < shares.size(); ++i) {
          ASSERT_NEAR(shares[i], expected[i], 1e-4 * expected[i] + 1e-9)
              << to_string(kind) << " " << to_string(level) << " dim " << c.head_dim << " group "
              << c.group << " blocks " << c.num_blocks << " at " << i;
        }
      }
    }
  }
}

TEST(IndexScan, QueriesThatTellNothingScoreAllTokensAlike) {
  IndexQueries queries(2, 64);
  std::vector<float> numbers(128, 0.0F);
  numbers[70] = NAN;
  queries.prepare(KeyIndexKind::kR2, numbers.data(), 1.0F);
  const IndexQuery view = queries.view();
  for (int v = 0; v < 2; ++v) {
    EXPECT_EQ(view.factors[v], 0.0F);
    EXPECT_EQ(view.offsets[v], 0.0F);
  }
}

TEST(IndexScan, PreparedQueriesKeepDotProducts) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  std::vector<float> query(64);
  std::vector<float> key(64);
  double dot = 0.0;
  for (std::size_t i = 0; i < 64; ++i) {
    query[i] = normal(random);
    key[i] = query[i] + 0.3F * normal(random);
    dot += static_cast<double>(query[i]) * static_cast<double>(key[i]);
  }
  for (const KeyIndexKind kind : {KeyIndexKind::kR2, KeyIndexKind::kR3}) {
    std::vector<std::byte> record(key_index_block_bytes(kind, 64));
    index_tokens(kind, 64, record.data(), 0, 1, {key.data(), 64}, nullptr);
    // A second token of zeros: its score is 0, so the ratio of the masses is 2^score.
    const std::vector<float> zeros(64, 0.0F);
    index_tokens(kind, 64, record.data(), 1, 1, {zeros.data(), 64}, nullptr);
    IndexQueries queries(1, 64);
    const float scale = 0.1F;
    queries.prepare(kind, query.data(), scale);
    IndexChunk chunk{};
    chunk.num_blocks = 1;
    chunk.last_tokens = 2;
    chunk.num_records = 1;
    chunk.records[0] = record.data();
    std::vector<float> masses(16);
    float reference = 0.0F;
    float sum = 0.0F;
    std::vector<float> scores(std::size_t{kScanVectors} * kScanBlocks * kBlockSize);
    IndexScan(CpuLevel::kPortable, kind)
        .run(queries.view(), chunk, scores.data(), {masses.data(), 16, &reference, &sum, 1});
    const double expected = static_cast<double>(scale) * dot;
    EXPECT_NEAR(static_cast<double>(reference), expected, 0.15 * expected);
    EXPECT_NEAR(static_cast<double>(sum), 1.0 + std::exp2(-static_cast<double>(reference)), 1e-4);
  }
}

}  // namespace
}  // namespace karez
