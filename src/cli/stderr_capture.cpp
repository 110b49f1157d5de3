#include "cli/stderr_capture.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string_view>
#include <utility>

namespace karez {

StderrCapture::StderrCapture() {
  std::fflush(stderr);
  file_ = memfd_create("stderr", MFD_CLOEXEC);
  if (file_ < 0) {
    return;  // nothing is caught, nothing is lost
  }
  saved_ = dup(STDERR_FILENO);
  if (saved_ >= 0) {
    dup2(file_, STDERR_FILENO);
  }
}

StderrCapture::~StderrCapture() {
  restore();
  if (file_ >= 0) {
    close(file_);
  }
}

void StderrCapture::restore() {
  if (const int saved = std::exchange(saved_, -1); saved >= 0) {
    std::fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
  }
}

std::string StderrCapture::finish() {
  restore();
  std::array<char, 512> buffer = {};
  const ssize_t length = file_ >= 0 ? pread(file_, buffer.data(), buffer.size(), 0) : 0;
  const std::string_view text(buffer.data(), static_cast<std::size_t>(length > 0 ? length : 0));
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace karez
