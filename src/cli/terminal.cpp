#include "cli/terminal.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <system_error>
#include <utility>

#include "cli/report.h"

namespace karez {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kRedrawInterval = milliseconds(100);
constexpr auto kLineInterval = seconds(3);
constexpr std::int64_t kBarCells = 24;

std::string bar(double share) {
  const auto filled = static_cast<std::size_t>(share * static_cast<double>(kBarCells));
  return std::string(filled, '#') + std::string(kBarCells - filled, '.');
}

}  // namespace

std::string format_seconds(double value) {
  if (value < 60) {
    return fmt::format("{:.{}f} s", value, value < 10 ? 2 : 1);
  }
  const auto whole = static_cast<std::int64_t>(value);
  return fmt::format("{} min {:02} s", whole / 60, whole % 60);
}

std::string format_rate(double per_second) {
  if (per_second >= 100) {
    return fmt::format("{:.0f}", per_second);
  }
  return fmt::format("{:.{}f}", per_second, per_second >= 10 ? 1 : 2);
}

Progress::Progress(std::string label, std::string unit)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      is_terminal_(isatty(STDERR_FILENO) == 1),
      start_(Clock::now()),
      last_(start_) {}

Progress::~Progress() { finish(); }

std::string Progress::line(std::int64_t done, std::int64_t total) const {
  const double share = static_cast<double>(done) / static_cast<double>(total);
  std::string text = fmt::format("{} {:3.0f} %", label_, share * 100);
  const double elapsed = duration<double>(Clock::now() - start_).count();
  if (!unit_.empty()) {
    text += fmt::format("  {} of {} {}", done, total, unit_);
    if (elapsed > 0) {
      text += fmt::format(", {}/s", format_rate(static_cast<double>(done) / elapsed));
    }
  }
  if (done > 0 && done < total) {
    text += fmt::format(", {} left", format_seconds(elapsed * (1 - share) / share));
  }
  return text;
}

void Progress::update(std::int64_t done, std::int64_t total) {
  if (total <= 0) {
    return;
  }
  done = std::clamp<std::int64_t>(done, 0, total);
  const auto now = Clock::now();
  if (now - last_ < (is_terminal_ ? Clock::duration(kRedrawInterval) : kLineInterval)) {
    return;
  }
  last_ = now;
  if (is_terminal_) {
    // \x1b[K wipes what is left of a longer line.
    write_stderr(fmt::format("\r[{}] {}\x1b[K",
                             bar(static_cast<double>(done) / static_cast<double>(total)),
                             line(done, total)));
    std::fflush(stderr);
    drawn_ = true;
  } else {
    write_stderr(fmt::format("{}\n", line(done, total)));
  }
}

void Progress::finish() {
  if (std::exchange(drawn_, false)) {
    write_stderr(fmt::format("\r\x1b[K"));
    std::fflush(stderr);
  }
}

AnswerStream::AnswerStream() : is_terminal_(isatty(STDOUT_FILENO) == 1) {
  // A reader that goes away is an error to report, not a reason to die in the middle.
  std::signal(SIGPIPE, SIG_IGN);
}

bool AnswerStream::write(std::string_view text) {
  if (!text.empty()) {
    at_line_start_ = text.back() == '\n';
  }
  while (error_ == 0 && !text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      // Somebody made the pipe non-blocking; wait for its reader.
      pollfd ready{STDOUT_FILENO, POLLOUT, 0};
      poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      error_ = errno;
    }
  }
  return error_ == 0;
}

void AnswerStream::end_line() {
  if (is_terminal_ && !at_line_start_) {
    write("\n");
  }
}

std::string AnswerStream::error() const { return std::generic_category().message(error_); }

}  // namespace karez
