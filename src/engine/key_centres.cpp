#include "engine/key_centres.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "attention/block_store.h"
#include "engine/eval_store.h"

namespace karez {
namespace {

constexpr int kMinKeyCentreTokens = 2 * kBlockSize;  // the first block is left out

}  // namespace

Expected<std::vector<float>> measure_key_centres(ModelRunner& runner, KvType kv_type,
                                                 std::span<const TokenId> tokens, int step_tokens) {
  const std::size_t num_blocks = tokens.size() / kBlockSize;
  if (tokens.size() < kMinKeyCentreTokens) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("the text for the key centres has {} tokens; {} are needed",
                            tokens.size(), kMinKeyCentreTokens));
  }
  tokens = tokens.first(num_blocks * kBlockSize);
  const KVCacheSpec spec = runner.config().kv_cache_spec(kv_type);
  auto store = EvalStore::create(spec, std::nullopt, static_cast<std::int64_t>(tokens.size()), 0,
                                 step_tokens, {});
  if (!store) {
    return fail(store.error());
  }
  EvalSequence sequence(*store);
  const auto step = static_cast<std::size_t>(step_tokens);
  for (std::size_t begin = 0; begin < tokens.size(); begin += step) {
    auto done =
        sequence.append(runner, tokens.subspan(begin, std::min(step, tokens.size() - begin)),
                        SequenceRows::kNeverSparse, false);
    if (!done) {
      return fail(done.error());
    }
  }

  const KVCacheManager& kv = *store->kv;
  const auto dim = static_cast<std::size_t>(spec.head_dim);
  const auto heads = static_cast<std::size_t>(spec.num_kv_heads);
  std::vector<float> centres(static_cast<std::size_t>(spec.num_layers) * heads * dim, 0.0F);
  std::vector<float> keys(std::size_t{kBlockSize} * dim);
  std::vector<double> sums(dim);
  for (int layer = 0; layer < spec.num_layers; ++layer) {
    const int group = kv.group_of_layer(layer);
    if (kv.layer_groups()[static_cast<std::size_t>(group)].window > 0) {
      continue;
    }
    const KVLayerView view = kv.layer(layer);
    const BlockTableView table = sequence.table(group);
    for (std::size_t head = 0; head < heads; ++head) {
      std::fill(sums.begin(), sums.end(), 0.0);
      for (std::size_t block = 1; block < num_blocks; ++block) {
        load_block_keys(kv_type, spec.head_dim, view.slot(static_cast<int>(head), table[block]),
                        keys.data());
        for (std::size_t i = 0; i < keys.size(); ++i) {
          sums[i % dim] += static_cast<double>(keys[i]);
        }
      }
      const auto count = static_cast<double>((num_blocks - 1) * kBlockSize);
      float* centre = &centres[(static_cast<std::size_t>(layer) * heads + head) * dim];
      for (std::size_t i = 0; i < dim; ++i) {
        centre[i] = static_cast<float>(sums[i] / count);
      }
    }
  }
  return centres;
}

Expected<std::vector<float>> built_in_key_centres(ModelRunner& runner, const Tokenizer& tokenizer,
                                                  KvType kv_type, const SparseOptions& sparse,
                                                  int step_tokens) {
  if (!sparse.is_on() || !codes_tokens(sparse.block_index)) {
    return std::vector<float>();
  }
  auto tokens = tokenizer.tokenize(key_centre_text(), true, false);
  if (!tokens) {
    return fail(std::move(tokens.error()));
  }
  const int count = std::min(
      {static_cast<int>(tokens->size()), kMaxKeyCentreTokens, runner.config().context_length});
  if (count < kMinKeyCentreTokens) {
    return std::vector<float>();
  }
  return measure_key_centres(
      runner, kv_type, std::span(*tokens).first(static_cast<std::size_t>(count)), step_tokens);
}

}  // namespace karez
