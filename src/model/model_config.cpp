#include "model/model_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "model/architecture.h"
#include "model/gguf_contents.h"
#include "model/gguf_file.h"
#include "model/metadata_reader.h"

namespace karez {
namespace {

constexpr int kMaxLayers = 512;
constexpr int kMaxWidth = 1 << 20;    // hidden and intermediate sizes
constexpr int kMaxHeads = 1024;       // KVCacheSpec
constexpr int kMaxHeadDim = 512;      // KVCacheSpec
constexpr int kHeadDimMultiple = 16;  // KVCacheSpec
constexpr int kMaxVocab = 1 << 24;
constexpr int kMaxContext = std::numeric_limits<int>::max();
constexpr float kMaxFrequencyBase = 1e12F;
constexpr float kMaxRopeFactor = 1e6F;

// Keys of variants that change the computation and that no supported architecture has.
void refuse_variants(MetadataReader& keys) {
  const auto refuse_above_zero = [&](std::string_view key, std::string_view what) {
    if (const int value = keys.integer(key, 0, std::numeric_limits<int>::max(), 0); value > 0) {
      keys.refuse(StatusCode::kUnimplemented, key, fmt::format("is {}: {}", value, what));
    }
  };
  refuse_above_zero("expert_count", "mixtures of experts are not supported, allowed is 0");
  refuse_above_zero("nextn_predict_layers", "prediction layers are not supported, allowed is 0");
  for (const std::string_view key : {"attention.max_alibi_bias", "attention.clamp_kqv"}) {
    if (const float value = keys.number(key, 0, std::numeric_limits<float>::max(), 0.0F);
        value != 0.0F) {
      keys.refuse(StatusCode::kUnimplemented, key,
                  fmt::format("is {}, which is not supported, allowed is 0", value));
    }
  }
  if (!keys.boolean("attention.causal", true)) {
    keys.refuse(StatusCode::kUnimplemented, "attention.causal",
                "is false: models that read both ways are not supported");
  }
}

void read_heads(MetadataReader& keys, ModelConfig& config) {
  config.num_heads =
      keys.same_for_all_layers("attention.head_count", config.num_layers, 1, kMaxHeads);
  config.num_kv_heads = keys.same_for_all_layers("attention.head_count_kv", config.num_layers, 1,
                                                 kMaxHeads, config.num_heads);
  if (config.num_heads % config.num_kv_heads != 0) {
    keys.refuse(StatusCode::kCorruption, "attention.head_count_kv",
                fmt::format("is {}, allowed are divisors of attention.head_count, which is {}",
                            config.num_kv_heads, config.num_heads));
  }
  constexpr std::string_view kKeyLength = "attention.key_length";
  constexpr std::string_view kValueLength = "attention.value_length";
  if (!keys.has(kKeyLength) && config.hidden_size % config.num_heads != 0) {
    keys.refuse(StatusCode::kCorruption, "embedding_length",
                fmt::format("is {}, allowed are multiples of attention.head_count, which is {}",
                            config.hidden_size, config.num_heads));
  }
  const int derived = config.hidden_size / config.num_heads;
  config.head_dim = keys.integer(kKeyLength, 1, kMaxWidth, derived);
  const int value_length = keys.integer(kValueLength, 1, kMaxWidth, derived);
  if (value_length != config.head_dim) {
    keys.refuse(StatusCode::kUnimplemented, kValueLength,
                fmt::format("is {}, supported is the same as attention.key_length, which is {}",
                            value_length, config.head_dim));
  }
  if (config.head_dim % kHeadDimMultiple != 0 || config.head_dim > kMaxHeadDim) {
    keys.refuse(StatusCode::kUnimplemented, kKeyLength,
                fmt::format("is {}, supported are multiples of {} up to {}", config.head_dim,
                            kHeadDimMultiple, kMaxHeadDim));
  }
  config.attention_scale = 1.0F / std::sqrt(static_cast<float>(config.head_dim));
}

RopeScaling read_scaling_type(MetadataReader& keys) {
  const std::string type = keys.text("rope.scaling.type", "linear");
  if (type == "none") {
    return RopeScaling::kNone;
  }
  if (type == "yarn") {
    return RopeScaling::kYarn;
  }
  if (type != "linear") {
    keys.refuse(StatusCode::kUnimplemented, "rope.scaling.type",
                fmt::format("is \"{}\", supported are linear, none and yarn", printable(type)));
  }
  return RopeScaling::kLinear;
}

// YaRN (Peng et al., 2023): attention is sharpened by 0.1 ln(factor) + 1. ggml's rope multiplies
// by that number itself, so what is left for the factor that it is given is nearly always 1.
float yarn_attention_factor(float freq_scale) {
  const float log_factor = std::log(1.0F / freq_scale);
  const float wanted = freq_scale >= 1.0F ? 1.0F : 0.1F * log_factor + 1.0F;
  return wanted / (1.0F + 0.1F * log_factor);
}

void read_rope(MetadataReader& keys, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  rope.dimensions = keys.integer("rope.dimension_count", 2, kMaxWidth, config.head_dim);
  if (rope.dimensions > config.head_dim || rope.dimensions % 2 != 0) {
    keys.refuse(StatusCode::kUnimplemented, "rope.dimension_count",
                fmt::format("is {}, supported are even numbers up to the head's {} coordinates",
                            rope.dimensions, config.head_dim));
  }
  rope.freq_base = keys.positive_number("rope.freq_base", kMaxFrequencyBase, 10000.0F);
  rope.scaling = read_scaling_type(keys);
  // The second name is of old converters; 0 means that there is no scaling.
  const std::string_view factor_key =
      keys.has("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear";
  const float factor = keys.number(factor_key, 0, kMaxRopeFactor, 0.0F);
  if (factor != 0.0F && factor < 1.0F / kMaxRopeFactor) {
    keys.refuse(StatusCode::kCorruption, factor_key,
                fmt::format("is {}, allowed are 0 and {} to {}", factor, 1.0F / kMaxRopeFactor,
                            kMaxRopeFactor));
  }
  rope.freq_scale = factor == 0.0F || rope.scaling == RopeScaling::kNone ? 1.0F : 1.0F / factor;
  rope.original_context =
      keys.integer("rope.scaling.original_context_length", 0, kMaxContext, config.context_length);
  if (rope.original_context == 0) {
    rope.original_context = config.context_length;
  }
  rope.attn_factor = keys.positive_number("rope.scaling.attn_factor", kMaxRopeFactor, 1.0F);
  if (rope.scaling == RopeScaling::kYarn) {
    rope.ext_factor = 1;
    rope.attn_factor *= yarn_attention_factor(rope.freq_scale);
    if (!std::isfinite(rope.attn_factor)) {
      keys.refuse(StatusCode::kCorruption, factor_key,
                  fmt::format("is {}, for which YaRN's attention factor is not finite", factor));
    }
  }
}

// The number of token texts; files without a vocabulary say it themselves.
Expected<int> read_vocab_size(const GgufFile& file, MetadataReader& keys) {
  constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
  if (!file.has(kTokens)) {
    const int vocab_size = keys.integer("vocab_size", 1, kMaxVocab);
    return keys.status().map([&] { return vocab_size; });
  }
  const auto tokens = file.array_info(kTokens);
  if (!tokens) {
    return fail(tokens.error());
  }
  if (tokens->length < 1 || tokens->length > kMaxVocab) {
    return fail(StatusCode::kCorruption,
                fmt::format("{}: key \"{}\" has {} elements, allowed are 1 to {}", file.path(),
                            kTokens, tokens->length, kMaxVocab));
  }
  return static_cast<int>(tokens->length);
}

Expected<void> summarize_weights(const GgufFile& file, ModelConfig& config) {
  std::array<std::int64_t, GGML_TYPE_COUNT> bytes_of_type{};
  for (const GgufTensor& tensor : file.tensors()) {
    const auto type = static_cast<ggml_type>(tensor.type);
    if (tensor.shape.size() > 1 && ggml_get_type_traits_cpu(type)->vec_dot == nullptr) {
      return fail(StatusCode::kUnimplemented,
                  fmt::format("{}: tensor \"{}\" has type {}, with which ggml does not compute",
                              file.path(), printable(tensor.name), ggml_type_name(type)));
    }
    std::int64_t num_elements = 1;
    for (const std::int64_t dim : tensor.shape) {
      num_elements *= dim;
    }
    config.num_parameters += num_elements;
    config.weight_bytes += static_cast<std::int64_t>(tensor.data.size());
    bytes_of_type[tensor.type] += static_cast<std::int64_t>(tensor.data.size());
  }
  const auto most = std::max_element(bytes_of_type.begin(), bytes_of_type.end());
  if (*most > 0) {
    config.file_type = ggml_type_name(static_cast<ggml_type>(most - bytes_of_type.begin()));
  }
  return {};
}

Expected<const Architecture*> read_architecture(const GgufFile& file) {
  const auto name = file.get_string("general.architecture");
  if (!name) {
    return fail(StatusCode::kCorruption, name.error().message());
  }
  const Architecture* architecture = find_architecture(*name);
  if (architecture == nullptr) {
    return fail(
        StatusCode::kUnimplemented,
        fmt::format("{}: architecture \"{}\" is not supported; supported are {}", file.path(),
                    printable(*name), fmt::join(supported_architectures(), ", ")));
  }
  // The other parts of a split model would be missing tensors; say what is really the matter.
  if (const auto parts = file.get_int("split.count"); parts && *parts > 1) {
    return fail(StatusCode::kUnimplemented,
                fmt::format("{}: key \"split.count\" is {}: models in several files are not "
                            "supported, merge them with llama-gguf-split --merge",
                            file.path(), *parts));
  }
  return architecture;
}

}  // namespace

KVCacheSpec ModelConfig::kv_cache_spec(KvType type) const {
  return KVCacheSpec{.num_layers = num_layers,
                     .num_kv_heads = num_kv_heads,
                     .head_dim = head_dim,
                     .type = type,
                     .layer_windows = layer_windows};
}

std::vector<std::string> supported_architectures() {
  std::vector<std::string> names;
  for (const Architecture* architecture : architectures()) {
    names.emplace_back(architecture->name);
  }
  return names;
}

Expected<ModelConfig> read_model_config(const GgufFile& file) {
  const auto architecture = read_architecture(file);
  if (!architecture) {
    return fail(architecture.error());
  }
  ModelConfig config;
  config.architecture = (*architecture)->name;
  if (const auto name = file.get_string("general.name")) {
    config.name = *name;
  }

  MetadataReader keys(file, config.architecture);
  config.num_layers = keys.integer("block_count", 1, kMaxLayers);
  config.context_length = keys.integer("context_length", 1, kMaxContext);
  config.hidden_size = keys.integer("embedding_length", 1, kMaxWidth);
  config.intermediate_size =
      keys.same_for_all_layers("feed_forward_length", config.num_layers, 1, kMaxWidth);
  config.rms_norm_eps = keys.positive_number("attention.layer_norm_rms_epsilon", 1.0F);
  config.layer_windows.assign(static_cast<std::size_t>(config.num_layers), 0);
  read_heads(keys, config);
  read_rope(keys, config);
  refuse_variants(keys);
  if (auto status = keys.status(); !status) {
    return fail(status.error());
  }

  const auto vocab_size = read_vocab_size(file, keys);
  if (!vocab_size) {
    return fail(vocab_size.error());
  }
  config.vocab_size = *vocab_size;
  return summarize_weights(file, config)
      .and_then([&] { return (*architecture)->configure(file, config); })
      .map([&] { return std::move(config); });
}

Expected<ModelConfig> read_model_config(const std::string& path) {
  auto file = GgufFile::open(path);
  if (!file) {
    return fail(std::move(file.error()));
  }
  return read_model_config(*file);
}

}  // namespace karez
