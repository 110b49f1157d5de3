#include "support/random_model.h"

#include <fmt/format.h>
// Test code may see ggml: it quantizes the weights with ggml's own routines.
#include <ggml.h>

#include <cmath>
#include <numbers>
#include <stdexcept>

namespace karez::test {
namespace {

constexpr int kControlTokens = 3;
constexpr int kByteTokens = 256;

// Query weights are this much larger than 1/sqrt(fan-in), so that attention prefers some tokens.
constexpr float kSharpness = 2;

// SplitMix64 and Box-Muller: independent of the standard library.
class Normal {
 public:
  explicit Normal(std::uint64_t seed) : state_(seed) {}

  float next() {
    const double u = (static_cast<double>(bits() >> 11) + 0.5) * 0x1p-53;
    const double v = static_cast<double>(bits() >> 11) * 0x1p-53;
    return static_cast<float>(std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v));
  }

 private:
  std::uint64_t bits() {
    state_ += 0x9E3779B97F4A7C15U;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }

  std::uint64_t state_;
};

ggml_type type_named(const std::string& name) {
  for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
    const auto type = static_cast<ggml_type>(i);
    if (ggml_type_size(type) > 0 && ggml_type_name(type) == name) {
      return type;
    }
  }
  throw std::invalid_argument("no ggml type " + name);
}

class Builder {
 public:
  explicit Builder(const RandomModelSpec& spec)
      : spec_(spec), is_gemma3_(spec.architecture == "gemma3"), normal_(spec.seed) {}

  GgufWriter build() {
    if (spec_.vocab_size < kControlTokens + kByteTokens) {
      throw std::invalid_argument("a random model needs 259 tokens at least");
    }
    write_metadata();
    write_rope();
    write_windows();
    write_vocabulary();
    write_tensors();
    return std::move(writer_);
  }

 private:
  std::string key(const char* name) const { return fmt::format("{}.{}", spec_.architecture, name); }
  template <typename T>
  static std::uint32_t u32(T value) {
    return static_cast<std::uint32_t>(value);
  }

  void write_metadata() {
    writer_.set("general.architecture", spec_.architecture);
    writer_.set("general.name", "random");
    writer_.set(key("block_count"), u32(spec_.num_layers));
    writer_.set(key("context_length"), u32(spec_.context_length));
    writer_.set(key("embedding_length"), u32(spec_.hidden_size));
    writer_.set(key("feed_forward_length"), u32(spec_.intermediate_size));
    writer_.set(key("attention.head_count"), u32(spec_.num_heads));
    writer_.set(key("attention.head_count_kv"), u32(spec_.num_kv_heads));
    writer_.set(key("attention.key_length"), u32(spec_.head_dim));
    writer_.set(key("attention.value_length"), u32(spec_.head_dim));
    writer_.set(key("attention.layer_norm_rms_epsilon"), 1e-6F);
    if (spec_.final_logit_softcap > 0) {
      writer_.set(key("final_logit_softcapping"), spec_.final_logit_softcap);
    }
  }

  void write_rope() {
    writer_.set(key("rope.dimension_count"), u32(spec_.head_dim));
    writer_.set(key("rope.freq_base"), spec_.rope_freq_base);
    if (!spec_.rope_scaling.empty()) {
      writer_.set(key("rope.scaling.type"), spec_.rope_scaling);
      writer_.set(key("rope.scaling.factor"), spec_.rope_scaling_factor);
      writer_.set(key("rope.scaling.original_context_length"), u32(spec_.rope_original_context));
    }
  }

  void write_windows() {
    if (spec_.sliding_window > 0) {
      writer_.set(key("attention.sliding_window"), u32(spec_.sliding_window));
    }
    if (spec_.sliding_window_period > 0) {
      writer_.set(key("attention.sliding_window_pattern"), u32(spec_.sliding_window_period));
    }
    if (!spec_.sliding_window_layers.empty()) {
      writer_.set_array(key("attention.sliding_window_pattern"), spec_.sliding_window_layers);
    }
  }

  // A SentencePiece vocabulary with a token for every byte, so that all text can be written.
  void write_vocabulary() {
    std::vector<std::string> texts = {"<unk>", "<s>", "</s>"};
    std::vector<std::int32_t> types = {2, 3, 3};  // unknown, control
    for (int byte = 0; byte < kByteTokens; ++byte) {
      texts.push_back(fmt::format("<0x{:02X}>", byte));
      types.push_back(6);
    }
    for (int i = 0; std::ssize(texts) < spec_.vocab_size; ++i) {
      texts.push_back(fmt::format("w{}", i));
      types.push_back(1);
    }
    std::vector<float> scores;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      scores.push_back(-static_cast<float>(i));
    }
    writer_.set("tokenizer.ggml.model", "llama");
    writer_.set("tokenizer.ggml.pre", "default");
    writer_.set_array("tokenizer.ggml.tokens", texts);
    writer_.set_array("tokenizer.ggml.scores", scores);
    writer_.set_array("tokenizer.ggml.token_type", types);
    writer_.set("tokenizer.ggml.bos_token_id", std::uint32_t{1});
    writer_.set("tokenizer.ggml.eos_token_id", std::uint32_t{2});
    writer_.set("tokenizer.ggml.unknown_token_id", std::uint32_t{0});
    writer_.set("tokenizer.ggml.add_bos_token", true);
  }

  void write_tensors() {
    const ggml_type weight = type_named(spec_.weight_type);
    const ggml_type embedding =
        spec_.embedding_type.empty() ? weight : type_named(spec_.embedding_type);
    matrix("token_embd.weight", embedding, spec_.hidden_size, spec_.vocab_size, 1);
    vector("output_norm.weight", spec_.hidden_size, 1);
    if (!spec_.tied_embeddings) {
      matrix("output.weight", weight, spec_.hidden_size, spec_.vocab_size, 1);
    }
    if (spec_.rope_factors) {
      write_rope_factors();
    }
    for (int layer = 0; layer < spec_.num_layers; ++layer) {
      write_layer(fmt::format("blk.{}.", layer), weight);
    }
  }

  void write_layer(const std::string& prefix, ggml_type weight) {
    const int query = spec_.num_heads * spec_.head_dim;
    const int kv = spec_.num_kv_heads * spec_.head_dim;
    const int hidden = spec_.hidden_size;
    vector(prefix + "attn_norm.weight", hidden, 1);
    matrix(prefix + "attn_q.weight", weight, hidden, query, kSharpness);
    matrix(prefix + "attn_k.weight", weight, hidden, kv, 1);
    matrix(prefix + "attn_v.weight", weight, hidden, kv, 1);
    if (spec_.qkv_bias || spec_.architecture == "qwen2") {
      vector(prefix + "attn_q.bias", query, 0);
      vector(prefix + "attn_k.bias", kv, 0);
      vector(prefix + "attn_v.bias", kv, 0);
    }
    if (is_gemma3_ || spec_.architecture == "qwen3") {
      vector(prefix + "attn_q_norm.weight", spec_.head_dim, kSharpness);
      vector(prefix + "attn_k_norm.weight", spec_.head_dim, 1);
    }
    matrix(prefix + "attn_output.weight", weight, query, hidden, 1);
    if (is_gemma3_) {
      vector(prefix + "post_attention_norm.weight", hidden, 1);
    }
    vector(prefix + "ffn_norm.weight", hidden, 1);
    matrix(prefix + "ffn_gate.weight", weight, hidden, spec_.intermediate_size, 1);
    matrix(prefix + "ffn_up.weight", weight, hidden, spec_.intermediate_size, 1);
    matrix(prefix + "ffn_down.weight", weight, spec_.intermediate_size, hidden, 1);
    if (is_gemma3_) {
      vector(prefix + "post_ffw_norm.weight", hidden, 1);
    }
  }

  // Long waves are stretched by the factor, short ones kept, as in Llama 3.1.
  void write_rope_factors() {
    std::vector<float> factors;
    const int half = spec_.head_dim / 2;
    for (int i = 0; i < half; ++i) {
      const float position = static_cast<float>(i) / static_cast<float>(half);
      factors.push_back(position < 0.5F ? 1.0F : 1 + (position - 0.5F) * 14);
    }
    writer_.add_tensor("rope_freqs.weight", GGML_TYPE_F32, {half},
                       std::as_bytes(std::span(factors)));
  }

  // Norms around `mean`, biases around 0.
  void vector(const std::string& name, int size, float mean) {
    std::vector<float> values;
    for (int i = 0; i < size; ++i) {
      values.push_back(mean + 0.1F * normal_.next());
    }
    writer_.add_tensor(name, GGML_TYPE_F32, {size}, std::as_bytes(std::span(values)));
  }

  void matrix(const std::string& name, ggml_type type, int columns, int rows, float scale) {
    if (columns % ggml_blck_size(type) != 0) {
      throw std::invalid_argument(fmt::format("{}: rows of {} are no multiple of {}'s block", name,
                                              columns, ggml_type_name(type)));
    }
    const float deviation = scale / std::sqrt(static_cast<float>(columns));
    std::vector<float> values(static_cast<std::size_t>(columns) * static_cast<std::size_t>(rows));
    for (float& value : values) {
      value = deviation * normal_.next();
    }
    std::vector<std::byte> data(ggml_row_size(type, columns) * static_cast<std::size_t>(rows));
    ggml_quantize_chunk(type, values.data(), data.data(), 0, rows, columns, nullptr);
    writer_.add_tensor(name, static_cast<std::uint32_t>(type), {columns, rows}, data);
  }

  const RandomModelSpec& spec_;
  bool is_gemma3_;
  Normal normal_;
  GgufWriter writer_;
};

}  // namespace

GgufWriter random_model(const RandomModelSpec& spec) { return Builder(spec).build(); }

}  // namespace karez::test
