#include "model/model_weights.h"

#include <fmt/format.h>

#include <array>

#include "model/weight_store.h"

namespace karez {

namespace {

// Assigns the tensor and goes on, or returns the failure.
Expected<void> take(ggml_tensor*& target, const Expected<ggml_tensor*>& tensor) {
  if (!tensor) {
    return fail(tensor.error());
  }
  target = *tensor;
  return {};
}

// Runs steps until one fails.
template <typename... Steps>
Expected<void> in_order(Steps&&... steps) {
  Expected<void> result;
  static_cast<void>(((result = steps(), result.has_value()) && ...));
  return result;
}

struct LayerLoader {
  WeightStore& store;
  const ModelConfig& config;
  LayerWeights& layer;
  std::string prefix;  // "blk.7."

  std::string name(const char* part) const { return prefix + part; }
  std::int64_t hidden() const { return config.hidden_size; }
  std::int64_t q_size() const { return std::int64_t{config.num_heads} * config.head_dim; }
  std::int64_t kv_size() const { return std::int64_t{config.num_kv_heads} * config.head_dim; }

  Expected<void> projections() {
    using Part = WeightStore::Part;
    // Some files carry the three projections glued already.
    if (store.file().find_tensor(name("attn_qkv.weight")) != nullptr) {
      return take(layer.qkv,
                  store.matrix(name("attn_qkv.weight"), hidden(), q_size() + 2 * kv_size()));
    }
    const Part q{name("attn_q.weight"), q_size()};
    const Part k{name("attn_k.weight"), kv_size()};
    const Part v{name("attn_v.weight"), kv_size()};
    if (auto glued = take(layer.qkv, store.glued_matrix(std::array{q, k, v}, hidden()));
        !glued || layer.qkv != nullptr) {
      return glued;
    }
    if (auto value = take(layer.v, store.matrix(v.name, hidden(), v.length)); !value) {
      return value;
    }
    if (auto glued = take(layer.qk, store.glued_matrix(std::array{q, k}, hidden()));
        !glued || layer.qk != nullptr) {
      return glued;
    }
    return in_order([&] { return take(layer.q, store.matrix(q.name, hidden(), q.length)); },
                    [&] { return take(layer.k, store.matrix(k.name, hidden(), k.length)); });
  }

  Expected<void> attention() {
    return in_order(
        [&] {
          return take(layer.attention_norm, store.vector(name("attn_norm.weight"), hidden()));
        },
        [&] { return projections(); },
        [&] {
          using Part = WeightStore::Part;
          const std::array parts = {Part{name("attn_q.bias"), q_size()},
                                    Part{name("attn_k.bias"), kv_size()},
                                    Part{name("attn_v.bias"), kv_size()}};
          const std::string glued = name("attn_qkv.bias");
          return take(layer.qkv_bias, store.file().find_tensor(glued) != nullptr
                                          ? store.vector(glued, q_size() + 2 * kv_size())
                                          : store.glued_vector(parts));
        },
        [&] {
          return take(layer.attention_output,
                      store.matrix(name("attn_output.weight"), q_size(), hidden()));
        },
        [&] {
          return take(layer.attention_output_bias,
                      store.optional_vector(name("attn_output.bias"), hidden()));
        });
  }

  Expected<void> feed_forward() {
    using Part = WeightStore::Part;
    const std::int64_t size = config.intermediate_size;
    const std::array parts = {Part{name("ffn_gate.weight"), size},
                              Part{name("ffn_up.weight"), size}};
    return in_order(
        [&] { return take(layer.ffn_norm, store.vector(name("ffn_norm.weight"), hidden())); },
        [&] { return take(layer.gate_up, store.glued_matrix(parts, hidden())); },
        [&] {
          return layer.gate_up != nullptr
                     ? Expected<void>()
                     : take(layer.gate, store.matrix(parts[0].name, hidden(), size));
        },
        [&] {
          return layer.gate_up != nullptr
                     ? Expected<void>()
                     : take(layer.up, store.matrix(parts[1].name, hidden(), size));
        },
        [&] {
          const std::array biases = {Part{name("ffn_gate.bias"), size},
                                     Part{name("ffn_up.bias"), size}};
          return take(layer.gate_up_bias, store.glued_vector(biases));
        },
        [&] { return take(layer.down, store.matrix(name("ffn_down.weight"), size, hidden())); },
        [&] {
          return take(layer.down_bias, store.optional_vector(name("ffn_down.bias"), hidden()));
        });
  }
};

}  // namespace

Expected<void> load_transformer(WeightStore& store, const ModelConfig& config,
                                ModelWeights& weights) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t vocab = config.vocab_size;
  const bool tied = store.file().find_tensor("output.weight") == nullptr;
  weights.layers.resize(static_cast<std::size_t>(config.num_layers));
  for (int i = 0; i < config.num_layers; ++i) {
    LayerLoader loader{store, config, weights.layers[static_cast<std::size_t>(i)],
                       fmt::format("blk.{}.", i)};
    if (auto loaded =
            in_order([&] { return loader.attention(); }, [&] { return loader.feed_forward(); });
        !loaded) {
      return loaded;
    }
  }
  return in_order(
      [&] {
        return take(weights.token_embedding, store.embedding("token_embd.weight", hidden, vocab));
      },
      [&] { return take(weights.output_norm, store.vector("output_norm.weight", hidden)); },
      [&] {
        return take(weights.output,
                    store.matrix(tied ? "token_embd.weight" : "output.weight", hidden, vocab));
      },
      [&] { return take(weights.output_bias, store.optional_vector("output.bias", vocab)); },
      [&] {
        return take(weights.rope_factors,
                    store.optional_vector("rope_freqs.weight", config.rope.dimensions / 2));
      });
}

Expected<void> load_qk_norms(WeightStore& store, const ModelConfig& config, ModelWeights& weights) {
  for (int i = 0; i < config.num_layers; ++i) {
    const std::array parts = {
        WeightStore::Repeated{fmt::format("blk.{}.attn_q_norm.weight", i), config.num_heads},
        WeightStore::Repeated{fmt::format("blk.{}.attn_k_norm.weight", i), config.num_kv_heads}};
    if (auto taken = take(weights.layers[static_cast<std::size_t>(i)].qk_norm,
                          store.repeated_vectors(parts, config.head_dim));
        !taken) {
      return taken;
    }
  }
  return {};
}

Expected<void> load_post_norms(WeightStore& store, const ModelConfig& config,
                               ModelWeights& weights) {
  for (int i = 0; i < config.num_layers; ++i) {
    LayerWeights& layer = weights.layers[static_cast<std::size_t>(i)];
    const auto load = [&](ggml_tensor*& target, const char* part) {
      return take(target,
                  store.vector(fmt::format("blk.{}.{}.weight", i, part), config.hidden_size));
    };
    if (auto loaded =
            in_order([&] { return load(layer.attention_post_norm, "post_attention_norm"); },
                     [&] { return load(layer.ffn_post_norm, "post_ffw_norm"); });
        !loaded) {
      return loaded;
    }
  }
  return {};
}

}  // namespace karez
