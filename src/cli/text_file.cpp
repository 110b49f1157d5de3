#include "cli/text_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/bytes.h"
#include "sampling/utf8.h"

namespace karez {
namespace {

class FileDescriptor {
 public:
  FileDescriptor(const std::string& path, int flags) : fd_(::open(path.c_str(), flags, 0644)) {}
  ~FileDescriptor() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

tl::unexpected<Status> file_error(const std::string& path, int error) {
  const StatusCode code = error == ENOENT ? StatusCode::kNotFound : StatusCode::kIoError;
  return fail(code, fmt::format("{}: {}", path, std::generic_category().message(error)));
}

tl::unexpected<Status> cannot_write(const std::string& path, int error) {
  return fail(StatusCode::kIoError,
              fmt::format("{}: {}", path, std::generic_category().message(error)));
}

}  // namespace

Expected<std::string> read_text_file(const std::string& path, std::size_t max_bytes) {
  const FileDescriptor file(path, O_RDONLY | O_CLOEXEC);
  if (file.get() < 0) {
    return file_error(path, errno);
  }
  std::string text;
  constexpr std::size_t kStep = 64 * 1024;
  std::size_t length = 0;
  while (length <= max_bytes) {
    text.resize(std::min(length + kStep, max_bytes + 1));
    const ssize_t count = ::read(file.get(), text.data() + length, text.size() - length);
    if (count < 0) {
      if (errno == EINTR) {
        continue;
      }
      return file_error(path, errno);  // EISDIR among others
    }
    if (count == 0) {
      break;
    }
    length += static_cast<std::size_t>(count);
  }
  if (length > max_bytes) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("{}: the file has more than {} bytes ({}), which is the most that is "
                            "allowed here",
                            path, max_bytes, format_bytes(static_cast<std::int64_t>(max_bytes))));
  }
  text.resize(length);
  if (const auto offset = first_invalid_utf8(text)) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("{}: the text is not UTF-8 at byte {}", path, *offset));
  }
  return text;
}

Expected<void> check_writable(const std::string& path) {
  const FileDescriptor file(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK);
  // A pipe that nobody reads yet is one that can be written later.
  if (file.get() < 0 && errno != ENXIO) {
    return cannot_write(path, errno);
  }
  return {};
}

Expected<void> write_text_file(const std::string& path, const std::string& text) {
  const FileDescriptor file(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC);
  if (file.get() < 0) {
    return cannot_write(path, errno);
  }
  std::size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = ::write(file.get(), text.data() + written, text.size() - written);
    if (count < 0 && errno != EINTR) {
      return cannot_write(path, errno);
    }
    written += static_cast<std::size_t>(std::max<ssize_t>(count, 0));
  }
  return {};
}

}  // namespace karez
