#include "cli/report.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>

namespace karez {
namespace {

void print_line(std::string_view kind, std::string_view message) {
  std::string line(message);
  for (char& c : line) {
    // File names and library messages may hold anything; a terminal must not act on it.
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      c = ' ';
    }
  }
  write_stderr(fmt::format("karez: {}: {}\n", kind, line));
}

}  // namespace

int exit_code_for(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kNotFound:
    case StatusCode::kResourceExhausted:
    case StatusCode::kCorruption:
    case StatusCode::kUnimplemented:
      return kExitBadInput;
    case StatusCode::kIoError:  // a directory or an unreadable file in place of a model
      return kExitBadInput;
    case StatusCode::kUnavailable:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kCancelled:
    case StatusCode::kInternal:
      return kExitFailure;
  }
  return kExitFailure;
}

int report_error(const Status& status) {
  return report_error(status.message(), exit_code_for(status.code()));
}

int report_error(std::string_view message, int exit_code) {
  print_line("error", message);
  return exit_code;
}

void write_stderr(std::string_view text) {
  static_cast<void>(std::fwrite(text.data(), 1, text.size(), stderr));
}

Expected<void> flush_stdout() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    return fail(StatusCode::kInternal,
                fmt::format("standard output: {}", std::generic_category().message(errno)));
  }
  return {};
}

void report_note(std::string_view message) { print_line("note", message); }

}  // namespace karez
