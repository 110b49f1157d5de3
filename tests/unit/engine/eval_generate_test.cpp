// Forced decoding with compression, of a small random model whose tokens are bytes.
#include "engine/eval_generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "engine/eval.h"
#include "support/random_model.h"
#include "support/temporary_file.h"

namespace karez {
namespace eval_generate_test {

using testing::HasSubstr;

constexpr int kLength = 420;
constexpr int kPrompt = 64;  // run_eval()'s
constexpr int kWindow = 64;
constexpr int kRecent = 32;
constexpr int kFirstPublication = kPrompt + kWindow + kRecent;

struct EvalGenerate : testing::Test {
  EvalGenerate() : file("eval_generate.gguf") {
    test::RandomModelSpec spec;
    spec.context_length = 1024;
    spec.seed = 5;
    test::random_model(spec).write(file.path());
    options.model_path = file.path();
    for (int i = 0; i < 60; ++i) {
      text += "Line " + std::to_string(i * i * 7919 % 1000) + " of a text.\n";
    }
    options.texts = {{"a.txt", text}};
    options.lengths = {kLength};
    options.decode_tokens = 40;
    options.sparse.recent_window = 32;
    options.num_threads = 1;
    options.step_tokens = 96;
  }

  EvalReport run(std::vector<EvalMode> modes) {
    options.modes = std::move(modes);
    auto report = run_eval(options, {});
    EXPECT_TRUE(report) << report.error().to_string();
    return report ? std::move(*report) : EvalReport();
  }

  std::string message_of(const EvalMode& mode) {
    options.modes = {mode};
    const auto report = run_eval(options, {});
    EXPECT_FALSE(report);
    EXPECT_TRUE(report || report.error().code() == StatusCode::kInvalidArgument);
    return report ? std::string() : report.error().message();
  }

  static EvalMode keeping(double keep, CompressArchive archive = CompressArchive::kOff,
                          CompressScore score = CompressScore::kBidirectional) {
    EvalMode mode;
    mode.kv_type = KvType::kF32;
    mode.compression = CompressionOptions{.keep = keep,
                                          .window_tokens = kWindow,
                                          .recent_tokens = kRecent,
                                          .score = score,
                                          .archive = archive};
    return mode;
  }

  test::TemporaryFile file;
  std::string text;
  EvalOptions options;
};

void expect_same_rows(const EvalDocumentResult& a, const EvalDocumentResult& b,
                      double tolerance = 0) {
  ASSERT_EQ(a.rows.size(), b.rows.size());
  for (std::size_t i = 0; i < a.rows.size(); ++i) {
    EXPECT_NEAR(a.rows[i].nll, b.rows[i].nll, tolerance) << i;
    EXPECT_NEAR(a.rows[i].kl, b.rows[i].kl, tolerance) << i;
  }
}

TEST_F(EvalGenerate, RowsBeforeTheFirstPublicationAreThoseOfDenseAttention) {
  options.decode_tokens = kLength - kPrompt;
  const EvalReport report = run({keeping(0.5)});
  const EvalDocumentResult& document = report.modes[0].documents.at(0);
  const int first_position = kPrompt - 1;  // its row predicts the first generated token
  int after = 0;
  for (std::size_t i = 0; i < document.rows.size(); ++i) {
    const RowComparison& row = document.rows[i];
    if (first_position + static_cast<int>(i) < kFirstPublication) {
      ASSERT_EQ(row.kl, 0) << i;
      ASSERT_EQ(row.loss(), 0) << i;
    } else {
      after += row.kl > 0 ? 1 : 0;
    }
  }
  EXPECT_GT(after, 200);
  EXPECT_EQ(document.prompt_tokens, kPrompt);
}

TEST_F(EvalGenerate, CompressedBytesAreThoseOfTheWindowsLeft) {
  const EvalReport report = run({keeping(0.5), keeping(0.25)});
  for (const EvalModeResult& result : report.modes) {
    const CompressedRun& run = result.documents.at(0).compressed.value();
    // 419 tokens are read; publications at 160, 224, 288, 352, 416.
    EXPECT_EQ(run.windows, 5);
    const int blocks = (kLength - 1 + kBlockSize - 1) / kBlockSize;
    const int gone = 5 * (kWindow - result.mode.compression->kept_tokens()) / kBlockSize;
    EXPECT_NEAR(run.kv_share(), static_cast<double>(blocks - gone) / blocks, 1e-9);
    EXPECT_GT(run.seconds, run.compress_seconds);
    EXPECT_GT(run.compress_seconds, 0);
  }
}

TEST_F(EvalGenerate, MoreKeptPairsCostLessAndAnArchiveCostsLeast) {
  const EvalReport report =
      run({keeping(0.75), keeping(0.25), keeping(0.25, CompressArchive::kR4)});
  const double most = report.modes[0].total().mean_kl;
  const double least = report.modes[1].total().mean_kl;
  const double archived = report.modes[2].total().mean_kl;
  EXPECT_GT(most, 0);
  EXPECT_GT(least, 2 * most);
  EXPECT_GT(archived, 0);
  EXPECT_LT(archived, least / 10);
  EXPECT_EQ(report.modes[0].total().reference_nll, report.modes[1].total().reference_nll);
  EXPECT_GT(report.modes[2].compressed().kv_share(), report.modes[1].compressed().kv_share());
}

TEST_F(EvalGenerate, StepsAndCompanyDoNotMatter) {
  const EvalReport alone = run({keeping(0.25, CompressArchive::kR4)});
  options.step_tokens = 7;
  const EvalReport slow = run({keeping(0.25, CompressArchive::kR4)});
  // Products of f32 weights are added in another order for few rows, so that a number of the
  // archive may be rounded the other way.
  expect_same_rows(alone.modes[0].documents.at(0), slow.modes[0].documents.at(0), 1e-3);
  options.step_tokens = 96;
  options.num_threads = 2;
  const EvalReport more = run({keeping(0.5), keeping(0.25, CompressArchive::kR4),
                               keeping(0.25, CompressArchive::kOff, CompressScore::kRandom)});
  expect_same_rows(alone.modes[0].documents.at(0), more.modes[1].documents.at(0));
}

TEST_F(EvalGenerate, ABudgetOfTheWholeContextIsTheSameWithCompression) {
  for (const CompressArchive archive : {CompressArchive::kOff, CompressArchive::kR4}) {
    EvalMode sparse = keeping(0.25, archive);
    sparse.is_sparse = true;
    sparse.token_budget = 1 << 20;
    const EvalReport report = run({keeping(0.25, archive), sparse});
    expect_same_rows(report.modes[0].documents.at(0), report.modes[1].documents.at(0));
  }
}

TEST_F(EvalGenerate, ASmallBudgetCostsMoreOnTopOfCompression) {
  EvalMode sparse = keeping(0.5, CompressArchive::kR4);
  sparse.is_sparse = true;
  sparse.token_budget = 64;
  const EvalReport report = run({keeping(0.5, CompressArchive::kR4), sparse});
  EXPECT_GT(report.modes[1].total().mean_kl, 2 * report.modes[0].total().mean_kl);
}

TEST_F(EvalGenerate, AnotherReferenceTypeIsHeldAgainst) {
  options.reference_type = KvType::kF32;
  EvalMode narrow = keeping(0.5);
  narrow.kv_type = KvType::kQ8_0;
  const EvalReport report = run({keeping(0.5), narrow});
  EXPECT_EQ(report.modes[0].total().reference_nll, report.modes[1].total().reference_nll);
  EXPECT_NE(report.modes[0].total().nll, report.modes[1].total().nll);
}

TEST_F(EvalGenerate, FewerTokensCanCountAsGenerated) {
  options.generated_tokens = 200;
  const EvalReport report = run({keeping(0.5)});
  const EvalDocumentResult& document = report.modes[0].documents.at(0);
  EXPECT_EQ(document.prompt_tokens, kLength - 200);
  // The first window begins at 224, so publications are at 320 and 384.
  EXPECT_EQ(document.compressed.value().windows, 2);
}

TEST_F(EvalGenerate, HiddenNumbersLieInCompressedWindows) {
  options.lengths = {700};
  options.num_needles = 3;
  options.pass_key = true;
  options.filler = {"a.txt", text};
  options.texts = {};
  const EvalReport report = run({keeping(0.25)});
  const EvalModeResult& result = report.modes[0];
  ASSERT_EQ(result.documents.size(), 6U);
  for (const EvalDocumentResult& document : result.documents) {
    // Questions are at most 250 tokens of bytes; the last window before them has been compressed.
    for (const NeedleResult& needle : document.needles) {
      EXPECT_GT(needle.depth * 700, kPrompt * 0.9);
      EXPECT_LT(needle.depth, 1 - (kRecent + 32.0) / 700);
    }
    EXPECT_GE(document.compressed.value().windows, 4);
  }
  const auto keys = result.needles(DocumentKind::kPassKey);
  EXPECT_LT(keys.front().depth + 0.4, keys.back().depth);

  options.lengths = {384};
  EXPECT_THAT(message_of(keeping(0.25)), HasSubstr("compressed before they are asked for"));
  options.generated_tokens = 200;
  EXPECT_THAT(message_of(keeping(0.25)), HasSubstr("(--length, --generate"));
}

TEST_F(EvalGenerate, ProgressGoesUpToTheEnd) {
  std::vector<double> seen;
  options.modes = {keeping(0.5), keeping(0.25)};
  ASSERT_TRUE(run_eval(options, [&](std::string_view, double done) { seen.push_back(done); }));
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_NEAR(seen.back(), 1, 1e-6);
}

TEST_F(EvalGenerate, TooFewGeneratedTokensAreNamed) {
  options.generated_tokens = kLength;
  EXPECT_THAT(message_of(keeping(0.5)), HasSubstr("--generate is 420 and --length 420"));
  options.generated_tokens = 39;
  EXPECT_THAT(message_of(keeping(0.5)),
              testing::AllOf(HasSubstr("--decode-tokens is 40"), HasSubstr("39 count")));
  options.generated_tokens = 0;
  options.decode_tokens = kLength - kPrompt + 1;
  EXPECT_THAT(message_of(keeping(0.5)), HasSubstr("--decode-tokens is 357"));
}

TEST_F(EvalGenerate, AModelThatForgetsByItselfHasNothingToCompress) {
  test::RandomModelSpec spec;
  spec.architecture = "gemma3";
  spec.context_length = 1024;
  spec.sliding_window = 32;
  spec.sliding_window_layers = {true, true};
  test::random_model(spec).write(file.path());
  EXPECT_THAT(message_of(keeping(0.5)), HasSubstr("sliding window"));
}

}  // namespace eval_generate_test
}  // namespace karez
