// Catches what is written to file descriptor 2 for a moment.
//
// libllama prints the reason why a grammar is wrong straight to stderr; this turns it into part of
// our own error line. Not for use while other threads write there.
// Thread: the main thread, before others start.
#pragma once

#include <string>

namespace karez {

class StderrCapture {
 public:
  StderrCapture();
  // Puts stderr back.
  ~StderrCapture();
  StderrCapture(const StderrCapture&) = delete;
  StderrCapture& operator=(const StderrCapture&) = delete;

  // Puts stderr back and returns the first line that was written.
  std::string finish();

 private:
  void restore();

  int saved_ = -1;  // -1: stderr is itself
  int file_ = -1;
};

}  // namespace karez
