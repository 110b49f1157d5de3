#include "cli/report_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "cli/text_file.h"
#include "support/temporary_file.h"

namespace karez::test {
namespace report_files_test {

using testing::HasSubstr;

struct Outcome {
  Expected<void> result;
  std::string shown;
};

Outcome outcome_of(const std::string& table, const std::vector<ReportFile>& files) {
  testing::internal::CaptureStdout();
  Expected<void> result = write_report(table, files);
  return {std::move(result), testing::internal::GetCapturedStdout()};
}

TEST(ReportFiles, WhatCannotBeWrittenCostsNeitherTheTableNorTheOtherFiles) {
  const TemporaryFile other("report_files");
  const Outcome outcome = outcome_of(
      "table\n",
      {{"/no/such/folder/1", "lost"}, {other.path(), "kept"}, {"/no/such/folder/2", "lost"}});
  ASSERT_FALSE(outcome.result);
  EXPECT_THAT(outcome.result.error().message(), HasSubstr("/no/such/folder/1")) << "the first";
  EXPECT_EQ(outcome.shown, "table\n");
  EXPECT_EQ(read_text_file(other.path(), 100).value(), "kept");
}

TEST(ReportFiles, AFullDiskIsAnError) {
  const Outcome outcome = outcome_of("table\n", {ReportFile{"/dev/full", "lost"}});
  ASSERT_FALSE(outcome.result);
  EXPECT_EQ(outcome.result.error().code(), StatusCode::kIoError);
  EXPECT_EQ(outcome.shown, "table\n");
}

// Standard output is a file here: the table does not lie across what is written to it.
TEST(ReportFiles, AFileThatIsStandardOutputComesBehindTheTable) {
  const Outcome outcome = outcome_of("table\n", {ReportFile{"/dev/stdout", "{\"figure\": 1}\n"}});
  ASSERT_TRUE(outcome.result);
  EXPECT_EQ(outcome.shown, "{\"figure\": 1}\n");
}

}  // namespace report_files_test
}  // namespace karez::test
