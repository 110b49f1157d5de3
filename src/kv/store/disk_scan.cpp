#include "kv/store/disk_scan.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <memory>

#include "base/hex.h"

namespace karez {
namespace {

constexpr std::size_t kIdentityDigits = 16;
constexpr std::size_t kNameDigits = 64;

bool is_hex_of(std::string_view text, std::size_t digits, std::string_view ending) {
  return text.size() == digits + ending.size() && text.ends_with(ending) &&
         is_lower_hex(text.substr(0, digits));
}

// Calls visit(name) for each entry. 0, or an error number; ENOENT: no such folder, or it is not
// one.
int for_each_entry(int folder, const std::string& path,
                   const std::function<void(std::string_view)>& visit) {
  const int descriptor =
      openat(folder, path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (descriptor < 0) {
    return errno == ENOTDIR || errno == ELOOP ? ENOENT : errno;
  }
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(fdopendir(descriptor), &closedir);
  if (entries == nullptr) {
    const int error = errno;
    close(descriptor);
    return error;
  }
  errno = 0;
  while (const dirent* entry = readdir(entries.get())) {
    visit(entry->d_name);
    errno = 0;
  }
  return errno;
}

// True: nobody has it locked, it is deleted.
bool delete_if_left_behind(int folder, const std::string& path) {
  const int file = openat(folder, path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) {
    return false;
  }
  const bool is_left = flock(file, LOCK_EX | LOCK_NB) == 0;
  const bool is_deleted = is_left && unlinkat(folder, path.c_str(), 0) == 0;
  close(file);
  return is_deleted;
}

void add_file(int folder, const std::string& path, bool is_record, DiskIndex::Files& files) {
  struct stat info = {};
  if (fstatat(folder, path.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode)) {
    return;
  }
  if (!is_record && delete_if_left_behind(folder, path)) {
    return;
  }
  files[path] = {counted_bytes(info.st_size),
                 std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec,
                 is_record};
}

}  // namespace

int scan_store_folder(int folder, DiskIndex::Files& files) {
  int error = 0;
  const auto visit = [&](const std::string& path, const std::function<void(std::string_view)>& at) {
    const int failed = error == 0 ? for_each_entry(folder, path, at) : 0;
    if (failed != 0 && failed != ENOENT) {
      error = failed;
    }
  };
  visit(std::string(kTemporaryFolder), [&](std::string_view name) {
    if (is_hex_of(name, kIdentityDigits, ".tmp")) {
      add_file(folder, fmt::format("{}/{}", kTemporaryFolder, name), false, files);
    }
  });
  visit(std::string(kStoreFolder), [&](std::string_view identity) {
    if (!is_hex_of(identity, kIdentityDigits, "")) {
      return;
    }
    const std::string identity_folder = fmt::format("{}/{}", kStoreFolder, identity);
    visit(identity_folder, [&](std::string_view digits) {
      if (!is_hex_of(digits, 2, "")) {
        return;
      }
      const std::string part = fmt::format("{}/{}", identity_folder, digits);
      visit(part, [&](std::string_view name) {
        if (is_hex_of(name, kNameDigits, ".kv") && name.starts_with(digits)) {
          add_file(folder, fmt::format("{}/{}", part, name), true, files);
        }
      });
    });
  });
  return error;
}

std::optional<RecordName> record_name_in(std::string_view path, std::string_view identity_folder) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string_view::npos || !path.starts_with(identity_folder) ||
      !is_hex_of(path.substr(slash + 1), kNameDigits, ".kv")) {
    return std::nullopt;
  }
  RecordName name;
  if (!parse_hex(path.substr(slash + 1, kNameDigits), name.digest)) {
    return std::nullopt;
  }
  return name;
}

}  // namespace karez
