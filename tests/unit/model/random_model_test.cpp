// The models that other tests run on must themselves be sound: libllama loads them, and our own
// reading of them agrees with what was asked for.
#include "support/random_model.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "model/gguf_file.h"
#include "model/llama_reference.h"
#include "model/model_config.h"
#include "model/tokenizer_metadata.h"

namespace karez {
namespace {

using test::random_model;
using test::RandomModelSpec;

class ModelOnDisk {
 public:
  explicit ModelOnDisk(const RandomModelSpec& spec)
      : path_(std::filesystem::temp_directory_path() /
              ("karez_random_model_" + std::to_string(getpid()) + ".gguf")) {
    random_model(spec).write(path_);
  }
  ~ModelOnDisk() { std::filesystem::remove(path_); }

  std::string path() const { return path_; }

 private:
  std::filesystem::path path_;
};

std::vector<RandomModelSpec> specs() {
  return {
      {.architecture = "llama", .rope_scaling = "linear", .rope_factors = true},
      {.architecture = "llama", .tied_embeddings = false, .weight_type = "q8_0", .qkv_bias = true},
      {.architecture = "qwen2", .rope_scaling = "yarn"},
      {.architecture = "qwen3", .head_dim = 128, .weight_type = "bf16"},
      {.architecture = "gemma3",
       .num_layers = 7,
       .sliding_window = 32,
       .final_logit_softcap = 30,
       .rope_scaling = "linear"},
      {.architecture = "gemma3",
       .sliding_window = 32,
       .sliding_window_layers = {true, false},
       .seed = 2},
      {.architecture = "llama",
       .hidden_size = 256,
       .intermediate_size = 256,
       .head_dim = 64,
       .weight_type = "q4_K",
       .embedding_type = "q6_K"},
      {.architecture = "qwen3", .weight_type = "q4_1", .embedding_type = "f16"},
  };
}

TEST(RandomModel, LoadsInLibllamaAndGivesFiniteLogitsThatDiffer) {
  for (const RandomModelSpec& spec : specs()) {
    SCOPED_TRACE(spec.architecture + " " + spec.weight_type);
    const ModelOnDisk model(spec);
    auto reference = LlamaReference::load(model.path(), {.context_tokens = 256});
    ASSERT_TRUE(reference.has_value()) << reference.error().to_string();
    ASSERT_EQ((*reference)->vocab_size(), spec.vocab_size);
    std::vector<LlamaReference::Row> rows;
    for (int i = 0; i < 40; ++i) {
      rows.push_back(
          {.token = 3 + 7 * i % 250, .position = i, .sequence = 0, .want_logits = i == 39});
    }
    const auto logits = (*reference)->decode(rows);
    ASSERT_TRUE(logits.has_value()) << logits.error().to_string();
    double sum = 0;
    double squares = 0;
    for (const float logit : *logits) {
      sum += static_cast<double>(logit);
      squares += static_cast<double>(logit) * static_cast<double>(logit);
    }
    const double count = static_cast<double>(logits->size());
    const double deviation = std::sqrt(squares / count - sum * sum / count / count);
    EXPECT_GT(deviation, 0.3);
    EXPECT_LT(deviation, 10.0);
  }
}

TEST(RandomModel, ReadsBackAsItWasSpecified) {
  for (const RandomModelSpec& spec : specs()) {
    SCOPED_TRACE(spec.architecture + " " + spec.weight_type);
    const auto image = random_model(spec).build();
    const auto file = GgufFile::parse(image.bytes, "random.gguf");
    ASSERT_TRUE(file.has_value()) << file.error().to_string();
    const auto config = read_model_config(*file);
    ASSERT_TRUE(config.has_value()) << config.error().to_string();
    EXPECT_EQ(config->architecture, spec.architecture);
    EXPECT_EQ(config->num_layers, spec.num_layers);
    EXPECT_EQ(config->hidden_size, spec.hidden_size);
    EXPECT_EQ(config->intermediate_size, spec.intermediate_size);
    EXPECT_EQ(config->num_heads, spec.num_heads);
    EXPECT_EQ(config->num_kv_heads, spec.num_kv_heads);
    EXPECT_EQ(config->head_dim, spec.head_dim);
    EXPECT_EQ(config->vocab_size, spec.vocab_size);
    EXPECT_EQ(config->context_length, spec.context_length);
    const auto tokenizer = check_tokenizer_metadata(*file);
    EXPECT_TRUE(tokenizer.has_value()) << tokenizer.error().to_string();
  }
}

TEST(RandomModel, IsTheSameForTheSameSeedOnly) {
  const auto first = random_model({.seed = 7}).build().bytes;
  EXPECT_EQ(random_model({.seed = 7}).build().bytes, first);
  EXPECT_NE(random_model({.seed = 8}).build().bytes, first);
}

TEST(RandomModel, RefusesSpecsThatCannotBeWritten) {
  EXPECT_THROW(random_model({.vocab_size = 100}), std::invalid_argument);
  EXPECT_THROW(random_model({.hidden_size = 40, .weight_type = "q8_0"}), std::invalid_argument);
  EXPECT_THROW(random_model({.weight_type = "q9_9"}), std::invalid_argument);
}

}  // namespace
}  // namespace karez
