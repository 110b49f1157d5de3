#include "model/tokenizer_metadata.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <set>

#include "model/gguf_file.h"
#include "model/tokenizer.h"
#include "support/gguf_writer.h"
#include "support/random_model.h"

namespace karez {
namespace tokenizer_metadata_test {

using test::GgufWriter;
using testing::HasSubstr;

Expected<void> check(const GgufWriter& writer) {
  const auto image = writer.build();
  const auto file = GgufFile::parse(image.bytes, "test.gguf");
  EXPECT_TRUE(file.has_value()) << (file ? "" : file.error().to_string());
  return check_tokenizer_metadata(*file);
}

std::vector<std::string> byte_texts() {
  std::vector<std::string> texts = {"<unk>", "<s>", "</s>"};
  for (int byte = 0; byte < 256; ++byte) {
    constexpr std::string_view kHex = "0123456789ABCDEF";
    texts.push_back(std::string("<0x") + kHex[static_cast<std::size_t>(byte / 16)] +
                    kHex[static_cast<std::size_t>(byte % 16)] + ">");
  }
  return texts;
}

// Vocabularies without weights: enough for the checks.
GgufWriter sentencepiece(const std::vector<std::string>& texts) {
  GgufWriter writer;
  writer.set("tokenizer.ggml.model", "llama");
  writer.set_array("tokenizer.ggml.tokens", texts);
  return writer;
}

GgufWriter byte_pairs(std::size_t num_tokens) {
  GgufWriter writer;
  writer.set("tokenizer.ggml.model", "gpt2");
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < num_tokens; ++i) {
    texts.push_back("t" + std::to_string(i));
  }
  writer.set_array("tokenizer.ggml.tokens", texts);
  writer.set_array("tokenizer.ggml.merges", std::vector<std::string>{"t 1"});
  return writer;
}

TEST(TokenizerMetadata, AcceptsBothKindsOfVocabularies) {
  EXPECT_TRUE(check(sentencepiece(byte_texts())).has_value());
  EXPECT_TRUE(check(byte_pairs(20)).has_value());
}

// Each key in turn is left out. What then passes, libllama must be able to read; what does not
// pass, names the key.
TEST(TokenizerMetadata, NamesEachMissingKeyOrLibllamaHasADefault) {
  const std::set<std::string> needed = {"tokenizer.ggml.model", "tokenizer.ggml.tokens"};
  const auto path = std::filesystem::temp_directory_path() /
                    ("karez_tokenizer_" + std::to_string(getpid()) + ".gguf");
  const GgufWriter whole = test::random_model({.num_layers = 1});
  for (const std::string& key : whole.keys()) {
    if (!key.starts_with("tokenizer.")) {
      continue;
    }
    SCOPED_TRACE(key);
    GgufWriter writer = whole;
    writer.remove(key);
    const auto checked = check(writer);
    ASSERT_EQ(checked.has_value(), !needed.contains(key));
    if (!checked) {
      EXPECT_EQ(checked.error().code(), StatusCode::kCorruption);
      EXPECT_EQ(checked.error().message(), "test.gguf: key \"" + key + "\" is missing");
      continue;
    }
    writer.write(path);
    const auto tokenizer = Tokenizer::load(path);
    ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().to_string();
    EXPECT_TRUE((*tokenizer)->tokenize("some text \n\x01", true, false).has_value());
  }
  std::filesystem::remove(path);
}

struct Refusal {
  std::string key;
  std::function<void(GgufWriter&)> change;
  std::string message;
  StatusCode code = StatusCode::kCorruption;
};

void expect_refused(GgufWriter writer, const Refusal& refusal) {
  SCOPED_TRACE(refusal.key + " " + refusal.message);
  refusal.change(writer);
  const auto checked = check(writer);
  ASSERT_FALSE(checked.has_value());
  EXPECT_EQ(checked.error().code(), refusal.code);
  EXPECT_THAT(checked.error().message(), HasSubstr("test.gguf: key \"" + refusal.key + "\""));
  EXPECT_THAT(checked.error().message(), HasSubstr(refusal.message));
}

TEST(TokenizerMetadata, RefusesWhatLibllamaCannotRead) {
  const std::string tokens = "tokenizer.ggml.tokens";
  const std::string scores = "tokenizer.ggml.scores";
  const std::string types = "tokenizer.ggml.token_type";
  const std::string merges = "tokenizer.ggml.merges";
  const std::string bos = "tokenizer.ggml.bos_token_id";
  const std::string add_bos = "tokenizer.ggml.add_bos_token";
  const std::vector<std::string> texts = byte_texts();
  const std::size_t size = texts.size();
  auto without_newline = texts;
  without_newline[3 + 10] = "something else";
  auto twice = texts;
  twice.emplace_back("</s>");
  auto zero_byte = texts;
  zero_byte.emplace_back(std::string("</s>\0more", 9));
  auto renamed = texts;
  renamed.emplace_back("");
  renamed.emplace_back("[EMPTY_259]");
  const std::vector<Refusal> refusals = {
      {"tokenizer.ggml.model", [](GgufWriter& w) { w.set("tokenizer.ggml.model", 1U); },
       "has type u32, allowed is string"},
      {"tokenizer.ggml.model", [](GgufWriter& w) { w.set("tokenizer.ggml.model", "no_vocab"); },
       "is \"no_vocab\", supported are gpt2 and llama", StatusCode::kUnimplemented},
      {"tokenizer.ggml.pre", [](GgufWriter& w) { w.set("tokenizer.ggml.pre", true); },
       "has type bool"},
      {"tokenizer.chat_template", [](GgufWriter& w) { w.set("tokenizer.chat_template", 1.0F); },
       "has type f32"},
      {add_bos, [&](GgufWriter& w) { w.set(add_bos, 1U); }, "has type u32, allowed is bool"},
      {tokens, [&](GgufWriter& w) { w.set(tokens, "text"); }, "allowed is an array"},
      {tokens, [&](GgufWriter& w) { w.set_array(tokens, std::vector<float>{1}); }, "array of f32"},
      {tokens, [&](GgufWriter& w) { w.set_array(tokens, std::vector<std::string>{}); },
       "has 0 elements, allowed are 1 to"},
      {tokens, [&](GgufWriter& w) { w.set_array(tokens, twice); },
       "has the text \"</s>\" twice (tokens 2 and 259)"},
      {tokens, [&](GgufWriter& w) { w.set_array(tokens, zero_byte); },
       "has the text \"</s>\" twice (tokens 2 and 259)"},
      {tokens, [&](GgufWriter& w) { w.set_array(tokens, renamed); },
       "empty text at 259 and the text \"[EMPTY_259]\""},
      {tokens, [&](GgufWriter& w) { w.set_array(tokens, without_newline); },
       "lacks the byte token <0x0A>"},
      {scores, [&](GgufWriter& w) { w.set_array(scores, std::vector<std::uint8_t>(size)); },
       "is an array of u8, allowed is an array of f32"},
      {scores, [&](GgufWriter& w) { w.set_array(scores, std::vector<float>(size - 1)); },
       "has 258 elements, allowed is one for each of the 259 tokens"},
      {scores, [&](GgufWriter& w) { w.set(scores, 1.0F); }, "allowed is an array"},
      {types, [&](GgufWriter& w) { w.set_array(types, std::vector<std::uint8_t>(size)); },
       "is an array of u8, allowed is an array of i32"},
      {types, [&](GgufWriter& w) { w.set_array(types, std::vector<std::int32_t>(size + 1)); },
       "has 260 elements"},
      {types, [&](GgufWriter& w) { w.set_array(types, std::vector<std::int32_t>(size, 6)); },
       "token 0 is a byte, but its text is \"<unk>\""},
      {merges, [&](GgufWriter& w) { w.set_array(merges, std::vector<float>{1}); },
       "array of f32, allowed is an array of string"},
      {"tokenizer.ggml.suppress_tokens",
       [](GgufWriter& w) { w.set("tokenizer.ggml.suppress_tokens", 1U); }, "allowed is an array"},
      {bos, [&](GgufWriter& w) { w.set(bos, 259U); }, "is 259, allowed are 0 to 258"},
      {bos, [&](GgufWriter& w) { w.set(bos, ~0U); }, "is 4294967295, allowed"},
      {bos, [&](GgufWriter& w) { w.set(bos, 1); }, "has type i32, allowed is u32"},
      {"tokenizer.ggml.eot_token_id",
       [](GgufWriter& w) { w.set("tokenizer.ggml.eot_token_id", 9999U); }, "is 9999"},
  };
  for (const Refusal& refusal : refusals) {
    expect_refused(sentencepiece(texts), refusal);
  }
}

TEST(TokenizerMetadata, RefusesBytePairsWithoutMergesOrWithoutABeginToken) {
  expect_refused(byte_pairs(20),
                 {"tokenizer.ggml.merges", [](GgufWriter& w) { w.remove("tokenizer.ggml.merges"); },
                  "is missing"});
  expect_refused(byte_pairs(5), {"tokenizer.ggml.bos_token_id", [](GgufWriter&) {},
                                 "is missing and its default 11 is outside the 5 tokens"});
  GgufWriter without_bos = byte_pairs(5);
  without_bos.set("tokenizer.ggml.add_bos_token", false);
  EXPECT_TRUE(check(without_bos).has_value());
  expect_refused(without_bos, {"tokenizer.ggml.eos_token_id",
                               [](GgufWriter& w) { w.set("tokenizer.ggml.add_eos_token", true); },
                               "is missing and its default 11 is outside the 5 tokens"});
}

TEST(TokenizerMetadata, AcceptsIdsOutsideTheVocabularyThatLibllamaIgnores) {
  GgufWriter writer = sentencepiece(byte_texts());
  writer.set("tokenizer.ggml.padding_token_id", std::uint32_t{32000});
  EXPECT_TRUE(check(writer).has_value());
}

TEST(TokenizerMetadata, AcceptsABytesOwnTextInsteadOfItsToken) {
  auto texts = byte_texts();
  texts[3 + 'a'] = "a";
  EXPECT_TRUE(check(sentencepiece(texts)).has_value());
}

}  // namespace tokenizer_metadata_test
}  // namespace karez
