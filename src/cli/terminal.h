// Writing for people and for pipes: progress on stderr, the answer on stdout.
//
// Thread: one caller at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace karez {

// "1.4 s", "2 min 05 s"
std::string format_seconds(double seconds);
// "12.3", "1234": a rate with three digits that matter.
std::string format_rate(double per_second);

// Progress of one long part. On a terminal: a bar in one line that is redrawn a few times a second
// and wiped at the end. Elsewhere: a plain line every few seconds, none for parts that are short.
class Progress {
 public:
  // unit: what total counts ("tokens"); empty: only the share is shown.
  Progress(std::string label, std::string unit);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(std::int64_t done, std::int64_t total);
  // Wipes the bar. Called by the destructor as well.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  std::string line(std::int64_t done, std::int64_t total) const;

  std::string label_;
  std::string unit_;
  bool is_terminal_;
  bool drawn_ = false;
  Clock::time_point start_;
  Clock::time_point last_;
};

// Standard output, unbuffered, which knows when nobody reads any more.
class AnswerStream {
 public:
  AnswerStream();

  // False: writing failed, now or before (error() says why).
  bool write(std::string_view text);
  // On a terminal: a line break, if the text did not end with one.
  void end_line();

  bool failed() const { return error_ != 0; }
  std::string error() const;

 private:
  bool is_terminal_;
  bool at_line_start_ = true;
  int error_ = 0;
};

}  // namespace karez
