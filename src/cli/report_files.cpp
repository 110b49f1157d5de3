#include "cli/report_files.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "cli/text_file.h"

namespace karez {
namespace {

bool is_stdout(const std::string& path) {
  struct stat named = {};
  struct stat out = {};
  return ::stat(path.c_str(), &named) == 0 && ::fstat(STDOUT_FILENO, &out) == 0 &&
         named.st_dev == out.st_dev && named.st_ino == out.st_ino;
}

}  // namespace

Expected<void> write_report(const std::string& table, std::span<const ReportFile> files) {
  Expected<void> first;
  const auto write = [&](bool to_stdout) {
    for (const ReportFile& file : files) {
      if (is_stdout(file.path) != to_stdout) {
        continue;
      }
      auto written = write_text_file(file.path, file.text);
      if (!written && first) {
        first = std::move(written);
      }
    }
  };
  write(/*to_stdout=*/false);
  fmt::print("{}", table);
  std::fflush(stdout);
  write(/*to_stdout=*/true);
  return first;
}

}  // namespace karez
