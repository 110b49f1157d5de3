#include "engine/bench_measure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

namespace karez {
namespace {

using testing::ElementsAre;

// Takes as long as it says and writes down what it was asked to do.
class ScriptedEngine final : public BenchEngine {
 public:
  ScriptedEngine(std::string name, std::vector<std::string>& log) : name_(name), log_(log) {}

  Expected<double> prefill(std::span<const TokenId> tokens) override {
    if (fail_prefill) {
      return fail(StatusCode::kInternal, "told to fail");
    }
    log_.push_back(name_ + " prefill " + std::to_string(tokens.front()) + "+" +
                   std::to_string(tokens.size()));
    return static_cast<double>(tokens.size()) * seconds_per_token;
  }
  Expected<void> make_copies(int num_copies) override {
    log_.push_back(name_ + " copies " + std::to_string(num_copies));
    copies_ = num_copies;
    return {};
  }
  Expected<BenchDecode> decode(std::span<const TokenId> tokens) override {
    log_.push_back(name_ + " decode " + std::to_string(tokens.size()));
    BenchDecode result;
    result.steps = static_cast<int>(tokens.size()) / copies_;
    result.seconds = decode_seconds.at(turn_++ % decode_seconds.size());
    result.times.steps = result.steps;
    result.times.attention = result.seconds / 2;
    result.times.dense = result.seconds / 4;
    result.times.attention_read_bytes = 1000 * result.steps;
    return result;
  }
  void drop_copies() override {}
  void clear() override { log_.push_back(name_ + " clear"); }

  double seconds_per_token = 0.001;
  std::vector<double> decode_seconds = {1};
  bool fail_prefill = false;

 private:
  std::string name_;
  std::vector<std::string>& log_;
  std::size_t turn_ = 0;
  int copies_ = 1;
};

struct TwoEngines : testing::Test {
  std::vector<std::string> log;
  ScriptedEngine ours{"a", log};
  ScriptedEngine theirs{"b", log};
  std::vector<BenchSubject> subjects = std::vector<BenchSubject>(2);
  BenchShape shape;
  BenchTokens tokens;

  void SetUp() override {
    subjects[0].engine = &ours;
    subjects[0].labels.engine = "karez";
    subjects[0].labels.weight_read_bytes = 4000;
    subjects[1].engine = &theirs;
    subjects[1].labels.engine = "llama.cpp";
    shape.depths = {10, 30};
    shape.concurrencies = {2};
    shape.generate_tokens = 4;
    shape.repetitions = 1;
    tokens.prompt.resize(30);
    std::iota(tokens.prompt.begin(), tokens.prompt.end(), 0);
    tokens.continuation.resize(8, 1);
  }
};

TEST_F(TwoEngines, TakeTurnsAndContinueThePromptFromDepthToDepth) {
  const auto runs = measure(subjects, shape, tokens, {}, {});
  ASSERT_TRUE(runs.has_value());
  EXPECT_THAT(log,
              ElementsAre("a clear", "b clear", "a prefill 0+10", "b prefill 0+10", "a copies 2",
                          "b copies 2", "a decode 8", "b decode 8", "a decode 8", "b decode 8",
                          "a prefill 10+20", "b prefill 10+20", "a copies 2", "b copies 2",
                          "a decode 8", "b decode 8", "a decode 8", "b decode 8"));
}

TEST_F(TwoEngines, PrefillOfADepthCountsFromTheFirstToken) {
  shape.prefill_repetitions = 3;
  const auto runs = measure(subjects, shape, tokens, {}, {});
  ASSERT_TRUE(runs.has_value());
  ASSERT_EQ(runs->size(), 4U);
  for (const BenchRun& run : *runs) {
    EXPECT_NEAR(run.prefill_tokens_per_second, 1000, 1e-6);
    EXPECT_EQ(run.prefill_repetitions.size(), 3U);
  }
  EXPECT_EQ((*runs)[0].depth, 10);
  EXPECT_EQ((*runs)[2].depth, 30);
}

TEST_F(TwoEngines, TheFirstTurnIsNotCountedAndTheMedianIsShown) {
  shape.depths = {10};
  shape.repetitions = 3;
  ours.decode_seconds = {100, 2, 1, 4};  // the first is the warm-up
  const auto runs = measure(subjects, shape, tokens, {}, {});
  ASSERT_TRUE(runs.has_value());
  const BenchRun& run = runs->front();
  EXPECT_THAT(run.decode_repetitions, ElementsAre(4, 8, 2));
  EXPECT_EQ(run.decode_tokens_per_second, 4);
  EXPECT_NEAR(run.step_ms.total, 500, 1e-9);
  EXPECT_NEAR(*run.step_ms.attention, 250, 1e-9);
  EXPECT_NEAR(*run.step_ms.dense, 125, 1e-9);
  EXPECT_NEAR(*run.step_ms.other, 125, 1e-9);
  EXPECT_EQ(run.kv_read_bytes, 1000);
}

TEST_F(TwoEngines, FiguresAreDerivedFromTheBandwidthAndThePair) {
  shape.depths = {10};
  theirs.decode_seconds = {3};
  theirs.seconds_per_token = 0.002;
  auto runs = measure(subjects, shape, tokens, [] { return Expected<double>(20000); }, {});
  ASSERT_TRUE(runs.has_value());
  derive_figures(*runs);
  const BenchRun& run = runs->front();
  EXPECT_NEAR(*run.decode_ratio, 3, 1e-9);
  EXPECT_NEAR(*run.prefill_ratio, 2, 1e-9);
  // A step takes 250 ms; its 5000 bytes would take 250 ms at 20 kB/s.
  EXPECT_NEAR(*run.bandwidth_share, 1, 1e-9);
  // Its 1000 bytes of keys and values 50 ms; attention takes 125 ms.
  EXPECT_NEAR(*run.attention_over_floor, 2.5, 1e-9);
  EXPECT_FALSE((*runs)[1].decode_ratio.has_value());
}

TEST_F(TwoEngines, AFailureOfEitherEndsTheMeasurement) {
  theirs.fail_prefill = true;
  const auto runs = measure(subjects, shape, tokens, {}, {});
  ASSERT_FALSE(runs.has_value());
  EXPECT_EQ(runs.error().message(), "told to fail");
}

TEST_F(TwoEngines, AFailureOfTheProbeEndsTheMeasurement) {
  const auto probe = []() -> Expected<double> {
    return fail(StatusCode::kResourceExhausted, "no memory to read");
  };
  const auto runs = measure(subjects, shape, tokens, probe, {});
  ASSERT_FALSE(runs.has_value());
  EXPECT_EQ(runs.error().message(), "no memory to read");
}

TEST_F(TwoEngines, ProgressRisesToTheEnd) {
  std::vector<double> seen;
  ASSERT_TRUE(measure(subjects, shape, tokens, {}, [&](std::string_view, double done) {
                seen.push_back(done);
              }).has_value());
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(seen.front(), 0);
  EXPECT_LT(seen.back(), 1);
  EXPECT_GT(seen.back(), 0.8);
}

}  // namespace
}  // namespace karez
