#include "base/trace.h"

#include <gtest/gtest.h>

#include "support/trace_spans.h"

namespace karez::test {
namespace {

using std::chrono::microseconds;

TraceSpan span(TraceRow row, int begin_us, int end_us, std::uint64_t group = 0) {
  const TraceSpan::TimePoint start(std::chrono::hours(5));
  TraceSpan made;
  made.name = row == TraceRow::kCompute ? "work" : "read";
  made.row = row;
  made.group = group;
  made.items = 2;
  made.bytes = row == TraceRow::kCompute ? 0 : 1000;
  made.begin = start + microseconds(begin_us);
  made.end = start + microseconds(end_us);
  return made;
}

TEST(TraceWriter, SpansStandInTheOrderOfTheirBeginningOuterOnesFirst) {
  TraceWriter trace;
  trace.add(span(TraceRow::kCompute, 20, 30));
  trace.add(span(TraceRow::kCompute, 10, 15));
  TraceSpan outer = span(TraceRow::kCompute, 10, 40);
  outer.name = "step";
  outer.layer = 7;
  trace.add(outer);
  std::vector<TracedSpan> spans = read_trace(trace.to_json());
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_EQ(check_nesting(spans), "");
  EXPECT_EQ(spans[0].name, "step");
  EXPECT_EQ(spans[0].begin_ns, 0) << "times count from the first span";
  EXPECT_EQ(spans[0].end_ns, 30000);
  EXPECT_EQ(spans[0].args.at("layer"), 7);
  EXPECT_EQ(spans[0].args.at("rows"), 2);
  EXPECT_EQ(spans[2].within, std::vector<std::string>{"step"});
  EXPECT_EQ(spans[2].begin_ns, 10000);
}

TEST(TraceWriter, TransfersOfOneSubmissionAreOneSpan) {
  TraceWriter trace;
  trace.add(span(TraceRow::kPrefetch, 0, 10, 1));
  trace.add(span(TraceRow::kPrefetch, 2, 30, 1));
  trace.add(span(TraceRow::kPrefetch, 40, 50, 2));
  trace.add(span(TraceRow::kDemand, 0, 5, 1));
  TraceSpan failed = span(TraceRow::kDemand, 1, 6, 1);
  failed.has_failed = true;
  trace.add(failed);
  const std::vector<TracedSpan> spans = read_trace(trace.to_json());
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_EQ(spans[0].row, "prefetch");
  EXPECT_EQ(spans[0].end_ns, 30000);
  EXPECT_EQ(spans[0].args.at("bytes"), 2000);
  EXPECT_EQ(spans[0].args.at("blocks"), 4);
  EXPECT_FALSE(spans[0].args.contains("failed"));
  EXPECT_EQ(spans[1].row, "demand reads");
  EXPECT_EQ(spans[1].args.at("failed"), true);
}

TEST(TraceWriter, SubmissionsThatOverlapGetLanesOfTheirOwn) {
  TraceWriter trace;
  trace.add(span(TraceRow::kWriteBack, 0, 20, 1));
  trace.add(span(TraceRow::kWriteBack, 10, 30, 2));
  trace.add(span(TraceRow::kWriteBack, 25, 40, 3));
  trace.add(span(TraceRow::kWriteBack, 26, 27, 4));
  std::vector<TracedSpan> spans = read_trace(trace.to_json());
  ASSERT_EQ(spans.size(), 4U);
  EXPECT_EQ(check_nesting(spans), "");
  EXPECT_EQ(spans[2].lane, spans[0].lane) << "free again";
  EXPECT_NE(spans[1].lane, spans[0].lane);
  EXPECT_NE(spans[3].lane, spans[1].lane);
  for (const TracedSpan& one : spans) {
    EXPECT_EQ(one.row, "write-back");
  }
}

TEST(TraceWriter, GroupsOfTwoSourcesAreNotOne) {
  TraceWriter trace;
  const std::uint64_t first = trace.new_source();
  const std::uint64_t second = trace.new_source();
  trace.add(span(TraceRow::kDemand, 0, 1, first | 5));
  trace.add(span(TraceRow::kDemand, 9, 10, second | 5));
  EXPECT_EQ(read_trace(trace.to_json()).size(), 2U);
}

TEST(TraceWriter, KeepsTheLastSpansAndCountsTheOthers) {
  TraceWriter trace(3);
  for (int i = 0; i < 8; ++i) {
    trace.add(span(TraceRow::kCompute, i * 10, i * 10 + i));
  }
  EXPECT_EQ(trace.num_dropped(), 5);
  const std::string text = trace.to_json();
  const std::vector<TracedSpan> spans = read_trace(text);
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_EQ(spans[0].end_ns - spans[0].begin_ns, 5000);
  EXPECT_EQ(spans[2].end_ns - spans[2].begin_ns, 7000);
  EXPECT_EQ(nlohmann::json::parse(text).at("otherData").at("spans_dropped"), 5);
}

TEST(TraceWriter, ATraceOfNothingIsStillATrace) {
  EXPECT_TRUE(read_trace(TraceWriter().to_json()).empty());
}

}  // namespace
}  // namespace karez::test
