#include "kv/tier/scratch_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace karez {

namespace {

constexpr mode_t kOwnerOnly = S_IRUSR | S_IWUSR;
// For a file system that does not say. No disk in use has larger sectors.
constexpr std::size_t kSafeAlignment = 4096;

Status problem(const std::string& directory, std::string_view what, int error_number) {
  const StatusCode code = error_number == ENOENT    ? StatusCode::kNotFound
                          : error_number == ENOTDIR ? StatusCode::kInvalidArgument
                                                    : StatusCode::kIoError;
  return {code, fmt::format("{}: {}: {}", directory, what,
                            std::generic_category().message(error_number))};
}

// A file with a name for as long as it takes to remove it: for file systems without O_TMPFILE.
int open_and_unlink(int directory) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    const std::string name = fmt::format(".karez-{}-{}.kv", getpid(), attempt);
    const int file = openat(directory, name.c_str(),
                            O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kOwnerOnly);
    if (file >= 0) {
      unlinkat(directory, name.c_str(), 0);
      return file;
    }
    if (errno != EEXIST) {
      break;
    }
  }
  return -1;
}

}  // namespace

Expected<ScratchFile> ScratchFile::create(const std::string& directory, std::int64_t size_bytes) {
  // The directory is the user's word and may be a link; the file in it may not.
  const int folder = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) {
    return fail(problem(directory, "cannot open this directory", errno));
  }
  int file = openat(folder, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, kOwnerOnly);
  if (file < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
    file = open_and_unlink(folder);
  }
  const int open_error = errno;
  close(folder);
  if (file < 0) {
    return fail(problem(directory, "cannot make a file in this directory", open_error));
  }
  ScratchFile scratch(file);
  if (ftruncate(file, size_bytes) != 0) {
    return fail(
        problem(directory, fmt::format("cannot make a file of {} bytes", size_bytes), errno));
  }
  scratch.is_direct_ = scratch.try_direct();
  return scratch;
}

bool ScratchFile::try_direct() {
  struct statx info = {};
  if (statx(descriptor_, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) != 0) {
    return false;
  }
  const bool says = (info.stx_mask & STATX_DIOALIGN) != 0;
  if (says && info.stx_dio_offset_align == 0) {
    return false;
  }
  const int flags = fcntl(descriptor_, F_GETFL);
  if (flags < 0 || fcntl(descriptor_, F_SETFL, flags | O_DIRECT) != 0) {
    return false;
  }
  memory_alignment_ = says ? info.stx_dio_mem_align : kSafeAlignment;
  offset_alignment_ = says ? info.stx_dio_offset_align : kSafeAlignment;
  return true;
}

ScratchFile::ScratchFile(ScratchFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      is_direct_(other.is_direct_),
      memory_alignment_(other.memory_alignment_),
      offset_alignment_(other.offset_alignment_) {}

ScratchFile& ScratchFile::operator=(ScratchFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(is_direct_, other.is_direct_);
  std::swap(memory_alignment_, other.memory_alignment_);
  std::swap(offset_alignment_, other.offset_alignment_);
  return *this;
}

ScratchFile::~ScratchFile() {
  if (descriptor_ >= 0) {
    close(descriptor_);
  }
}

}  // namespace karez
