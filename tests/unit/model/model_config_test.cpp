#include "model/model_config.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <limits>
#include <set>

#include "model/architecture.h"
#include "model/gguf_file.h"
#include "support/gguf_writer.h"
#include "support/random_model.h"

namespace karez {
namespace {

using test::GgufWriter;
using test::random_model;
using test::RandomModelSpec;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

Expected<ModelConfig> config_of(const GgufWriter& writer) {
  const auto image = writer.build();
  const auto file = GgufFile::parse(image.bytes, "test.gguf");
  EXPECT_TRUE(file.has_value()) << (file ? "" : file.error().to_string());
  return read_model_config(*file);
}

ModelConfig config_of(const RandomModelSpec& spec) {
  auto config = config_of(random_model(spec));
  EXPECT_TRUE(config.has_value()) << (config ? "" : config.error().to_string());
  return config.value_or(ModelConfig{});
}

TEST(Architectures, AreThoseOfTheFilesInAscendingOrder) {
  EXPECT_THAT(supported_architectures(), ElementsAre("gemma3", "llama", "qwen2", "qwen3"));
  for (const Architecture* architecture : architectures()) {
    EXPECT_EQ(find_architecture(architecture->name), architecture);
  }
  EXPECT_EQ(find_architecture("llam"), nullptr);
}

TEST(ModelConfig, RefusesOtherArchitecturesByNameWithTheListOfThoseSupported) {
  GgufWriter writer = random_model({});
  writer.set("general.architecture", "mamba");
  const auto config = config_of(writer);
  ASSERT_FALSE(config.has_value());
  EXPECT_EQ(config.error().code(), StatusCode::kUnimplemented);
  EXPECT_EQ(config.error().message(),
            "test.gguf: architecture \"mamba\" is not supported; supported are gemma3, llama, "
            "qwen2, qwen3");
}

TEST(ModelConfig, TakesPlainNumbersAndDefaultsOfLlama) {
  const ModelConfig config = config_of(RandomModelSpec{.weight_type = "q8_0"});
  EXPECT_EQ(config.name, "random");
  EXPECT_EQ(config.file_type, "q8_0");
  EXPECT_GT(config.num_parameters, 64 * 512);
  EXPECT_GT(config.weight_bytes, config.num_parameters);
  EXPECT_LT(config.weight_bytes, 2 * config.num_parameters);
  EXPECT_FLOAT_EQ(config.rms_norm_eps, 1e-6F);
  EXPECT_FLOAT_EQ(config.attention_scale, 0.25F);
  EXPECT_EQ(config.attention_logit_softcap, 0);
  EXPECT_EQ(config.final_logit_softcap, 0);
  EXPECT_EQ(config.embedding_scale, 1);
  EXPECT_THAT(config.layer_windows, ElementsAre(0, 0));
  EXPECT_FALSE(config.rope.neox);
  EXPECT_EQ(config.rope.dimensions, 16);
  EXPECT_EQ(config.rope.freq_base, 10000);
  EXPECT_EQ(config.rope.freq_scale, 1);
  EXPECT_EQ(config.rope.ext_factor, 0);
  EXPECT_EQ(config.rope.attn_factor, 1);
  EXPECT_EQ(config.rope.original_context, 4096);

  const KVCacheSpec spec = config.kv_cache_spec(KvType::kQ8_0);
  EXPECT_EQ(spec.num_layers, 2);
  EXPECT_EQ(spec.num_kv_heads, 2);
  EXPECT_EQ(spec.head_dim, 16);
  EXPECT_EQ(spec.type, KvType::kQ8_0);
  EXPECT_EQ(spec.layer_windows, config.layer_windows);
}

TEST(ModelConfig, PairsRotatedCoordinatesAsTheArchitectureDoes) {
  EXPECT_TRUE(config_of(RandomModelSpec{.architecture = "qwen2"}).rope.neox);
  EXPECT_TRUE(config_of(RandomModelSpec{.architecture = "qwen3"}).rope.neox);
  EXPECT_TRUE(config_of(RandomModelSpec{.architecture = "gemma3"}).rope.neox);
}

TEST(ModelConfig, IgnoresTheWindowOfLlamaFilesAsLibllamaDoes) {
  const ModelConfig config = config_of(RandomModelSpec{.sliding_window = 32});
  EXPECT_THAT(config.layer_windows, Each(0));
}

TEST(ModelConfig, TakesScalesWindowsAndSoftCapOfGemma3) {
  RandomModelSpec spec{.architecture = "gemma3",
                       .num_layers = 8,
                       .sliding_window = 32,
                       .final_logit_softcap = 30,
                       .rope_freq_base = 1e6F,
                       .rope_scaling = "linear",
                       .rope_scaling_factor = 8};
  const ModelConfig config = config_of(spec);
  EXPECT_THAT(config.layer_windows, ElementsAre(32, 32, 32, 32, 32, 0, 32, 32));
  EXPECT_FLOAT_EQ(config.embedding_scale, 8);
  EXPECT_EQ(config.final_logit_softcap, 30);
  EXPECT_EQ(config.rope.freq_base, 1e6F);
  EXPECT_EQ(config.rope.freq_scale, 0.125F);
  EXPECT_EQ(config.rope.freq_base_window, 10000);
  EXPECT_EQ(config.rope.freq_scale_window, 1);

  spec.sliding_window_period = 3;
  EXPECT_THAT(config_of(spec).layer_windows, ElementsAre(32, 32, 0, 32, 32, 0, 32, 32));
  spec.sliding_window_period = 1;
  EXPECT_THAT(config_of(spec).layer_windows, Each(0));
  spec.sliding_window_layers = {true, false, false, true, false, false, false, true};
  EXPECT_THAT(config_of(spec).layer_windows, ElementsAre(32, 0, 0, 32, 0, 0, 0, 32));
  spec.sliding_window = 0;
  EXPECT_THAT(config_of(spec).layer_windows, Each(0));
}

TEST(ModelConfig, TakesTheOtherFrequencyBaseOfWindowedLayers) {
  GgufWriter writer = random_model({.architecture = "gemma3"});
  writer.set("gemma3.rope.freq_base_swa", 5000.0F);
  EXPECT_EQ(config_of(writer)->rope.freq_base_window, 5000);
}

TEST(ModelConfig, ScalesAttentionOfGemma3With62LayersByItsEmbedding) {
  const ModelConfig config =
      config_of(RandomModelSpec{.architecture = "gemma3", .num_layers = 62, .hidden_size = 32});
  EXPECT_FLOAT_EQ(config.attention_scale, 1 / std::sqrt(8.0F));
}

TEST(ModelConfig, DerivesYarnAsLibllamaDoes) {
  const ModelConfig yarn = config_of(RandomModelSpec{.rope_scaling = "yarn"});
  EXPECT_EQ(yarn.rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(yarn.rope.ext_factor, 1);
  EXPECT_EQ(yarn.rope.freq_scale, 0.25F);
  EXPECT_EQ(yarn.rope.original_context, 1024);
  EXPECT_FLOAT_EQ(yarn.rope.attn_factor, 1);
  EXPECT_EQ(yarn.rope.beta_fast, 32);
  EXPECT_EQ(yarn.rope.beta_slow, 1);

  GgufWriter writer = random_model({.rope_scaling = "yarn"});
  writer.set("llama.rope.scaling.attn_factor", 2.0F);
  EXPECT_FLOAT_EQ(config_of(writer)->rope.attn_factor, 2);
}

TEST(ModelConfig, DoesNotScaleWithoutAFactorOrWithScalingNone) {
  EXPECT_EQ(config_of(RandomModelSpec{.rope_scaling = "none"}).rope.freq_scale, 1);
  EXPECT_EQ(config_of(RandomModelSpec{.rope_scaling = "linear", .rope_scaling_factor = 0})
                .rope.freq_scale,
            1);
  GgufWriter old_name = random_model({});
  old_name.set("llama.rope.scale_linear", 2.0F);
  EXPECT_EQ(config_of(old_name)->rope.freq_scale, 0.5F);
}

TEST(ModelConfig, TakesArraysThatSayTheSameForEveryLayer) {
  GgufWriter writer = random_model({});
  writer.set_array("llama.attention.head_count_kv", std::vector<std::uint32_t>{2, 2});
  EXPECT_EQ(config_of(writer)->num_kv_heads, 2);
}

// What each key may be missing for. Everything else must be named when it is missing.
TEST(ModelConfig, NamesEachMissingKeyOrFillsInItsDefault) {
  const std::set<std::string> optional = {"general.name",
                                          "attention.head_count_kv",
                                          "attention.key_length",
                                          "attention.value_length",
                                          "rope.dimension_count",
                                          "rope.freq_base",
                                          "attention.sliding_window",
                                          "attention.sliding_window_pattern",
                                          "final_logit_softcapping",
                                          "rope.scaling.type",
                                          "rope.scaling.factor",
                                          "rope.scaling.original_context_length"};
  for (const std::string architecture : {"llama", "qwen2", "qwen3", "gemma3"}) {
    const GgufWriter whole = random_model({.architecture = architecture,
                                           .sliding_window = 32,
                                           .sliding_window_period = 2,
                                           .final_logit_softcap = 30,
                                           .rope_scaling = "linear"});
    for (const std::string& key : whole.keys()) {
      if (key.starts_with("tokenizer.") && key != "tokenizer.ggml.tokens") {
        continue;  // tokenizer_metadata_test.cpp
      }
      SCOPED_TRACE(key);
      GgufWriter writer = whole;
      writer.remove(key);
      const auto config = config_of(writer);
      const std::string short_key =
          key.starts_with(architecture) ? key.substr(architecture.size() + 1) : key;
      if (optional.contains(short_key)) {
        EXPECT_TRUE(config.has_value()) << config.error().to_string();
      } else {
        ASSERT_FALSE(config.has_value());
        EXPECT_EQ(config.error().code(), StatusCode::kCorruption);
        // Without a vocabulary, its size must be there.
        const std::string named =
            key == "tokenizer.ggml.tokens" ? architecture + ".vocab_size" : key;
        EXPECT_EQ(config.error().message(), "test.gguf: key \"" + named + "\" is missing");
      }
    }
  }
}

TEST(ModelConfig, TakesTheVocabularySizeOfFilesWithoutVocabulary) {
  GgufWriter writer = random_model({});
  writer.remove("tokenizer.ggml.tokens");
  writer.set("llama.vocab_size", std::uint32_t{512});
  EXPECT_EQ(config_of(writer)->vocab_size, 512);
}

struct Refusal {
  std::string key;  // after "llama."
  std::function<void(GgufWriter&, const std::string&)> change;
  std::string message;
  StatusCode code = StatusCode::kCorruption;
};

template <typename T>
std::function<void(GgufWriter&, const std::string&)> to(T value) {
  return [value](GgufWriter& writer, const std::string& key) { writer.set(key, value); };
}

void expect_refused(const std::string& architecture, const Refusal& refusal) {
  const std::string key = fmt::format("{}.{}", architecture, refusal.key);
  GgufWriter writer = random_model({.architecture = architecture});
  refusal.change(writer, key);
  SCOPED_TRACE(key + " " + refusal.message);
  const auto config = config_of(writer);
  ASSERT_FALSE(config.has_value());
  EXPECT_EQ(config.error().code(), refusal.code);
  EXPECT_THAT(config.error().message(), HasSubstr("test.gguf: key \"" + key + "\""));
  EXPECT_THAT(config.error().message(), HasSubstr(refusal.message));
}

TEST(ModelConfig, RefusesImpossibleValuesWithTheAllowedRange) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<Refusal> refusals = {
      {"block_count", to(0U), "is 0, allowed are 1 to 512"},
      {"block_count", to(0x80000000U), "is 2147483648, allowed are 1 to 512"},
      {"block_count", to(-1), "is -1, allowed"},
      {"block_count", to(2.0F), "has type f32, allowed is an integer"},
      {"context_length", to(0U), "is 0, allowed are 1 to 2147483647"},
      {"context_length", to(std::uint64_t{1} << 40), "is 1099511627776, allowed"},
      {"embedding_length", to(0U), "is 0, allowed are 1 to 1048576"},
      {"embedding_length", to(~0U), "is 4294967295, allowed"},
      {"feed_forward_length", to(0U), "is 0, allowed"},
      {"attention.head_count", to(0U), "is 0, allowed are 1 to 1024"},
      {"attention.head_count_kv", to(3U), "is 3, allowed are divisors of attention.head_count"},
      {"attention.head_count_kv", to(8U), "is 8, allowed are divisors"},
      {"attention.head_count_kv", to(0U), "is 0, allowed"},
      {"attention.head_count_kv",
       [](GgufWriter& w, const std::string& k) {
         w.set_array(k, std::vector<int>{2, 2, 2});
       },
       "has 3 elements"},
      {"attention.head_count_kv",
       [](GgufWriter& w, const std::string& k) {
         w.set_array(k, std::vector<float>{2, 2});
       },
       "array of f32"},
      {"attention.key_length", to(0U), "is 0, allowed are 1 to"},
      {"attention.layer_norm_rms_epsilon", to(0.0F), "is 0, allowed are numbers above 0"},
      {"attention.layer_norm_rms_epsilon", to(kNan), "is nan, allowed"},
      {"attention.layer_norm_rms_epsilon", to(-1e-5F), "allowed are 0 to 1"},
      {"attention.layer_norm_rms_epsilon", to(1e-60), "is 0, allowed"},
      {"rope.freq_base", to(0.0F), "is 0, allowed are numbers above 0"},
      {"rope.freq_base", to(-10000.0F), "is -10000, allowed"},
      {"rope.freq_base", to(kInfinity), "is inf, allowed"},
      {"rope.scaling.factor", to(-2.0F), "is -2, allowed"},
      {"rope.scaling.factor", to(kNan), "is nan, allowed"},
      {"rope.scaling.factor", to(1e-30F), "allowed are 0 and"},
      {"rope.scaling.type", to(1U), "has type u32, allowed is string"},
      {"rope.dimension_count", to(0U), "is 0, allowed"},
  };
  for (const Refusal& refusal : refusals) {
    expect_refused("llama", refusal);
  }
  expect_refused("gemma3", {"attention.sliding_window", to(-4), "is -4, allowed"});
  expect_refused("gemma3", {"rope.freq_base_swa", to(0.0F), "is 0, allowed"});
  expect_refused("gemma3", {"final_logit_softcapping", to(kNan), "is nan, allowed"});
  expect_refused("gemma3", {"attention.sliding_window_pattern",
                            [](GgufWriter& w, const std::string& k) {
                              w.set_array(k, std::vector<bool>{true});
                            },
                            "one integer or bool for each of the 2 layers"});
}

TEST(ModelConfig, RefusesVariantsThatAreNotComputed) {
  const auto code = StatusCode::kUnimplemented;
  const std::vector<Refusal> refusals = {
      {"expert_count", to(8U), "is 8: mixtures of experts are not supported", code},
      {"nextn_predict_layers", to(1U), "is 1: prediction layers", code},
      {"attention.value_length", to(32U), "is 32, supported is the same as", code},
      {"attention.head_count_kv",
       [](GgufWriter& w, const std::string& k) {
         w.set_array(k, std::vector<int>{2, 4});
       },
       "differs between layers (2 and 4)", code},
      {"feed_forward_length",
       [](GgufWriter& w, const std::string& k) {
         w.set_array(k, std::vector<int>{64, 128});
       },
       "differs between layers (64 and 128)", code},
      {"rope.scaling.type", to("longrope"), "is \"longrope\", supported are linear, none and yarn",
       code},
      {"rope.dimension_count", to(32U), "is 32, supported are even numbers up to", code},
      {"rope.dimension_count", to(7U), "is 7, supported are even numbers", code},
      {"attention.max_alibi_bias", to(8.0F), "is 8, which is not supported", code},
      {"attention.clamp_kqv", to(8.0F), "is 8, which is not supported", code},
      {"attention.causal", to(false), "read both ways", code},
  };
  for (const Refusal& refusal : refusals) {
    expect_refused("llama", refusal);
  }
  expect_refused("gemma3", {"attention.key_length_swa", to(32U), "differs", code});
  expect_refused("gemma3", {"rope.dimension_count_swa", to(8U), "differs", code});
  for (const std::uint32_t head_dim : {8U, 24U, 528U}) {
    expect_refused("llama",
                   {"attention.key_length",
                    [head_dim](GgufWriter& w, const std::string& k) {
                      w.set(k, head_dim);
                      w.set("llama.attention.value_length", head_dim);
                    },
                    fmt::format("is {}, supported are multiples of 16 up to 512", head_dim), code});
  }
}

TEST(ModelConfig, RefusesHeadsThatDoNotDivideTheEmbedding) {
  GgufWriter writer = random_model({});
  writer.remove("llama.attention.key_length");
  writer.remove("llama.attention.value_length");
  EXPECT_EQ(config_of(writer)->head_dim, 16);
  writer.set("llama.attention.head_count", std::uint32_t{128});
  const auto config = config_of(writer);
  ASSERT_FALSE(config.has_value());
  EXPECT_EQ(config.error().message(),
            "test.gguf: key \"llama.embedding_length\" is 64, allowed are multiples of "
            "attention.head_count, which is 128");
}

TEST(ModelConfig, RefusesModelsInSeveralFiles) {
  GgufWriter writer = random_model({});
  writer.set("split.count", std::uint16_t{2});
  EXPECT_EQ(config_of(writer).error().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(config_of(writer).error().message(), HasSubstr("\"split.count\" is 2"));
  writer.set("split.count", std::uint16_t{1});
  EXPECT_TRUE(config_of(writer).has_value());
}

TEST(ModelConfig, RefusesMatricesOfTypesThatGgmlOnlyStores) {
  GgufWriter writer = random_model({});
  const std::vector<std::int32_t> numbers(4);
  writer.add_tensor("table", 26 /* i32 */, {2, 2}, std::as_bytes(std::span(numbers)));
  const auto config = config_of(writer);
  ASSERT_FALSE(config.has_value());
  EXPECT_EQ(config.error().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(config.error().message(), HasSubstr("tensor \"table\" has type i32"));
}

}  // namespace
}  // namespace karez
