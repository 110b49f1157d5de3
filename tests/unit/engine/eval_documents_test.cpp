#include "engine/eval_documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace karez {
namespace {

using testing::HasSubstr;

// A token is a byte.
DocumentVocabulary bytes_vocabulary() {
  return {[](std::string_view text) -> Expected<std::vector<TokenId>> {
            std::vector<TokenId> tokens;
            for (const char c : text) {
              tokens.push_back(static_cast<unsigned char>(c));
            }
            return tokens;
          },
          [](TokenId token) { return std::string(1, static_cast<char>(token)); }};
}

// Tokens of two bytes, as vocabularies with several digits in a token have them.
DocumentVocabulary pairs_vocabulary() {
  return {[](std::string_view text) -> Expected<std::vector<TokenId>> {
            std::vector<TokenId> tokens;
            for (std::size_t i = 0; i < text.size(); i += 2) {
              const int second = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
              tokens.push_back(static_cast<unsigned char>(text[i]) * 256 + second);
            }
            return tokens;
          },
          [](TokenId token) {
            std::string text(1, static_cast<char>(token / 256));
            if (token % 256 != 0) {
              text += static_cast<char>(token % 256);
            }
            return text;
          }};
}

std::string text_of(const EvalDocument& document, const DocumentVocabulary& vocabulary) {
  std::string text;
  for (const TokenId token : document.tokens) {
    text += vocabulary.piece(token);
  }
  return text;
}

std::vector<TokenId> filler(const DocumentVocabulary& vocabulary) {
  std::string text;
  for (int i = 0; i < 400; ++i) {
    text += " It was a dark and stormy night.";
  }
  return *vocabulary.tokenize(text);
}

EvalDocument document_of(const DocumentVocabulary& vocabulary, const NeedleOptions& options,
                         int length = 4000, int min_decoded = 100) {
  auto document =
      plant_needles("needle", filler(vocabulary), length, min_decoded, options, vocabulary);
  EXPECT_TRUE(document) << document.error().to_string();
  return *document;
}

TEST(EvalDocuments, TheSameSeedGivesTheSameDocument) {
  const DocumentVocabulary bytes = bytes_vocabulary();
  const EvalDocument first = document_of(bytes, {.count = 8, .seed = 7});
  EXPECT_EQ(first.tokens, document_of(bytes, {.count = 8, .seed = 7}).tokens);
  EXPECT_NE(first.tokens, document_of(bytes, {.count = 8, .seed = 8}).tokens);
}

TEST(EvalDocuments, NeedlesAreWhereItSays) {
  for (const DocumentVocabulary& vocabulary : {bytes_vocabulary(), pairs_vocabulary()}) {
    const EvalDocument document = document_of(vocabulary, {.count = 12, .seed = 3});
    ASSERT_EQ(document.tokens.size(), 4000U);
    ASSERT_EQ(document.needles.size(), 12U);
    for (const Needle& needle : document.needles) {
      std::string planted;
      for (int i = 0; i < 64; ++i) {
        planted += vocabulary.piece(document.tokens[static_cast<std::size_t>(needle.position + i)]);
      }
      EXPECT_THAT(planted, testing::StartsWith(" The locker number of " + needle.name + " is " +
                                               needle.digits + "."));
      std::string answer;
      for (const int position : needle.answer_positions) {
        EXPECT_GE(position, static_cast<int>(document.tokens.size()) - document.num_decoded);
        answer += vocabulary.piece(document.tokens[static_cast<std::size_t>(position)]);
      }
      EXPECT_THAT(answer, HasSubstr(needle.digits));
      EXPECT_LE(answer.size(), needle.digits.size() + 2);  // and its neighbours in the tokens
    }
  }
}

TEST(EvalDocuments, EachFactStandsTwiceAndNamesDiffer) {
  const DocumentVocabulary bytes = bytes_vocabulary();
  const EvalDocument document = document_of(bytes, {.count = 20}, 8000);
  const std::string text = text_of(document, bytes);
  std::set<std::string> names;
  for (const Needle& needle : document.needles) {
    names.insert(needle.name);
    const std::size_t first = text.find(needle.digits);
    const std::size_t second = text.find(needle.digits, first + 1);
    EXPECT_EQ(static_cast<int>(second), needle.answer_positions.front());
    EXPECT_EQ(text.find(needle.digits, second + 1), std::string::npos);
  }
  EXPECT_EQ(names.size(), 20U);
}

TEST(EvalDocuments, NeedlesLieBehindSentencesAndSpreadOverTheDepth) {
  const DocumentVocabulary bytes = bytes_vocabulary();
  const EvalDocument document =
      document_of(bytes, {.count = 5, .first_depth = 0.1, .last_depth = 0.9}, 8000);
  double expected = 0.1;
  for (const Needle& needle : document.needles) {
    EXPECT_EQ(document.tokens[static_cast<std::size_t>(needle.position - 1)], '.');
    EXPECT_NEAR(needle.depth, expected, 0.01);
    expected += 0.2;
  }
}

TEST(EvalDocuments, APassKeyLiesAtItsDepth) {
  const DocumentVocabulary bytes = bytes_vocabulary();
  for (const double depth : {0.0, 0.5, 1.0}) {
    const EvalDocument document = document_of(
        bytes,
        {.kind = DocumentKind::kPassKey, .count = 1, .first_depth = depth, .last_depth = depth});
    ASSERT_EQ(document.needles.size(), 1U);
    EXPECT_NEAR(document.needles[0].depth, depth, 0.02);
    EXPECT_THAT(text_of(document, bytes),
                HasSubstr(" The pass key is " + document.needles[0].digits + ". Remember it."));
    EXPECT_EQ(document.tokens.size(), 4000U);
  }
}

TEST(EvalDocuments, AllQuestionsAreDecoded) {
  const DocumentVocabulary bytes = bytes_vocabulary();
  const EvalDocument document = document_of(bytes, {.count = 16}, 4000, 1);
  const std::string text = text_of(document, bytes);
  const std::string decoded =
      text.substr(text.size() - static_cast<std::size_t>(document.num_decoded));
  EXPECT_THAT(decoded, testing::StartsWith("\nThe locker number of "));
  EXPECT_EQ(document_of(bytes, {.count = 1}, 4000, 300).num_decoded, 300);
}

TEST(EvalDocuments, TooShortALengthOrFillerIsAnErrorWithFigures) {
  const DocumentVocabulary bytes = bytes_vocabulary();
  const auto tight = plant_needles("x.txt", filler(bytes), 200, 16, {.count = 4}, bytes);
  ASSERT_FALSE(tight);
  EXPECT_EQ(tight.error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(tight.error().message(), HasSubstr("it is 200"));
  const std::vector<TokenId> few(100, '.');
  const auto poor = plant_needles("x.txt", few, 4000, 16, {.count = 4}, bytes);
  ASSERT_FALSE(poor);
  EXPECT_THAT(poor.error().message(), HasSubstr("has 100 tokens"));
}

}  // namespace
}  // namespace karez
