#include "kv/store/disk_records.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "base/hex.h"
#include "kv/store/disk_scan.h"

namespace karez {
namespace {

constexpr mode_t kOwnerFile = S_IRUSR | S_IWUSR;
constexpr mode_t kOwnerFolder = S_IRWXU;
constexpr std::int64_t kLeastRecords = 16;
constexpr std::int64_t kMostReserve = 256 << 20;
constexpr std::size_t kPieceBytes = 256 << 10;

bool is_full(int error) { return error == ENOSPC || error == EDQUOT; }

Status status_of(const std::string& directory, int error) {
  const StatusCode code = is_full(error) ? StatusCode::kResourceExhausted
                          : error == EROFS || error == EACCES || error == EPERM
                              ? StatusCode::kUnavailable
                              : StatusCode::kIoError;
  return {code, fmt::format("{}: {}", directory, std::generic_category().message(error))};
}

std::string temporary_name() {
  std::uint64_t number = 0;
  if (getrandom(&number, sizeof(number), 0) != sizeof(number)) {
    number = static_cast<std::uint64_t>(getpid());  // O_EXCL finds a name that is taken
  }
  return fmt::format("{}/{:016x}.tmp", kTemporaryFolder, number);
}

std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

timespec time_of(std::int64_t ns) {
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

}  // namespace

// A descriptor that is closed at the end.
class DiskRecords::File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) {
      close(descriptor_);
    }
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }

 private:
  int descriptor_;
};

std::int64_t DiskRecords::least_cap_bytes(const RecordShape& shape) {
  return kLeastRecords * counted_bytes(static_cast<std::int64_t>(shape.record_bytes()));
}

Expected<std::shared_ptr<DiskRecords>> DiskRecords::open(DiskRecordsOptions options) {
  const std::int64_t least = least_cap_bytes(options.shape);
  if (options.cap_bytes < least) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("{}: {} bytes for prefix blocks, allowed are {} and more: {} blocks",
                            options.directory, options.cap_bytes, least, kLeastRecords));
  }
  const char* path = options.directory.c_str();
  mkdir(path, kOwnerFolder);  // mostly there already
  const int folder = ::open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) {
    const StatusCode code = errno == ENOENT    ? StatusCode::kNotFound
                            : errno == ENOTDIR ? StatusCode::kInvalidArgument
                                               : StatusCode::kIoError;
    return fail(code, fmt::format("{}: cannot open this folder: {}", options.directory,
                                  std::generic_category().message(errno)));
  }
  return std::shared_ptr<DiskRecords>(new DiskRecords(std::move(options), folder));
}

DiskRecords::DiskRecords(DiskRecordsOptions options, int folder)
    : options_(std::move(options)),
      folder_(folder),
      identity_folder_(
          fmt::format("{}/{}", kStoreFolder, to_hex(std::span(options_.shape.identity).first(8)))),
      file_bytes_(counted_bytes(static_cast<std::int64_t>(options_.shape.record_bytes()))) {}

DiskRecords::~DiskRecords() { close(folder_); }

std::string DiskRecords::describe() const { return options_.directory; }

std::string DiskRecords::path_of(const RecordName& name) const {
  const std::string hex = name.hex();
  return fmt::format("{}/{}/{}.kv", identity_folder_, hex.substr(0, 2), hex);
}

BackendUsage DiskRecords::usage() const {
  return {index_.used_bytes(), options_.cap_bytes, index_.num_records(), num_removed_};
}

Expected<void> DiskRecords::prepare() {
  int error = scan();
  if (error == 0) {
    error = make_folders();
  }
  if (error != 0) {
    return fail(status_of(options_.directory, error));
  }
  WriteReport report;
  error = make_room(0, false, report);
  return error == 0 ? Expected<void>() : fail(status_of(options_.directory, error));
}

int DiskRecords::make_folders() {
  if (const int error = intercept("mkdir"); error != 0) {
    return error;
  }
  std::set<std::string> parents;  // to be synced
  for (const std::string& path :
       {std::string(kStoreFolder), std::string(kTemporaryFolder), identity_folder_}) {
    if (mkdirat(folder_, path.c_str(), kOwnerFolder) == 0) {
      parents.emplace(path == kStoreFolder ? "." : kStoreFolder);
    } else if (errno != EEXIST) {
      return errno;
    }
  }
  for (const std::string& parent : parents) {
    if (const int error = sync_folder(parent); error != 0) {
      return error;
    }
  }
  return 0;
}

int DiskRecords::scan() {
  if (const int error = intercept("scan"); error != 0) {
    return error;
  }
  DiskIndex::Files files;
  const int error = scan_store_folder(folder_, files);
  if (error == 0) {
    index_.replace(std::move(files));
    written_since_scan_ = 0;
  }
  return error;
}

Expected<std::size_t> DiskRecords::count_present(std::span<const RecordName> chain) {
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const std::string path = path_of(chain[i]);
    if (index_.contains(path)) {
      continue;
    }
    // Another process may have written it, or the scan is not done yet.
    int error = intercept("find");
    if (error == 0 && faccessat(folder_, path.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) != 0) {
      error = errno;
    }
    if (error == ENOENT || error == ENOTDIR) {
      return i;
    }
    if (error != 0) {
      return fail(status_of(options_.directory, error));
    }
  }
  return chain.size();
}

Expected<ReadOutcome> DiskRecords::read(const RecordName& name, std::span<std::byte> record) {
  const std::string path = path_of(name);
  if (const int error = intercept("read"); error != 0) {
    return fail(status_of(options_.directory, error));
  }
  // What is not a plain file is not ours, and opening a pipe must not wait for its other end.
  const File file(openat(folder_, path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.is_open()) {
    if (errno == ENOENT || errno == ENOTDIR) {
      index_.remove(path);
      return ReadOutcome::kAbsent;
    }
    if (errno == ELOOP || errno == ENXIO) {
      return ReadOutcome::kAbsent;
    }
    return fail(status_of(options_.directory, errno));
  }
  struct stat info = {};
  if (fstat(file.get(), &info) != 0) {
    return fail(status_of(options_.directory, errno));
  }
  if (!S_ISREG(info.st_mode)) {
    return ReadOutcome::kAbsent;
  }
  if (info.st_size != static_cast<off_t>(record.size())) {
    return ReadOutcome::kWrongLength;
  }
  std::size_t done = 0;
  while (done < record.size()) {
    const ssize_t got =
        pread(file.get(), record.data() + done, record.size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return fail(status_of(options_.directory, errno));
    }
    if (got == 0) {
      return ReadOutcome::kWrongLength;
    }
    done += static_cast<std::size_t>(got);
  }
  return ReadOutcome::kRead;
}

void DiskRecords::remove(const RecordName& name) {
  const std::string path = path_of(name);
  struct stat info = {};
  if (fstatat(folder_, path.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info.st_mode)) {
    unlinkat(folder_, path.c_str(), 0);
  }
  index_.remove(path);
}

void DiskRecords::touch(std::span<const RecordUse> uses) {
  for (const RecordUse& use : uses) {
    const std::string path = path_of(use.name);
    const timespec times[2] = {{0, UTIME_OMIT}, time_of(use.use_time_ns)};
    if (intercept("touch") == 0 &&
        utimensat(folder_, path.c_str(), times, AT_SYMLINK_NOFOLLOW) == 0) {
      index_.touch(path, use.use_time_ns);
    }
  }
}

int DiskRecords::write_all(int file, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (const int error = intercept("write"); error != 0) {
      return error;
    }
    const ssize_t done = ::write(file, bytes.data(), std::min(bytes.size(), kPieceBytes));
    if (done < 0 && errno != EINTR) {
      return errno;
    }
    bytes = bytes.subspan(static_cast<std::size_t>(std::max<ssize_t>(done, 0)));
  }
  return 0;
}

struct DiskRecords::Begun {
  RecordUse use;
  std::string path;
  std::string temporary;
  std::unique_ptr<File> file;
};

int DiskRecords::begin(const RecordWrite& write, std::string path, std::vector<Begun>& begun) {
  if (const int error = intercept("open"); error != 0) {
    return error;
  }
  Begun one{write.use, std::move(path), temporary_name(), nullptr};
  one.file = std::make_unique<File>(openat(folder_, one.temporary.c_str(),
                                           O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                                           kOwnerFile));
  if (!one.file->is_open()) {
    return errno;
  }
  index_.put(one.temporary, {file_bytes_, 0, false});
  // For as long as it has this name. Who scans right now takes it for a dead one's: then the rename
  // fails.
  flock(one.file->get(), LOCK_EX | LOCK_NB);
  int error = write_all(one.file->get(), write.record);
  const timespec times[2] = {{0, UTIME_OMIT}, time_of(write.use.use_time_ns)};
  if (error == 0 && futimens(one.file->get(), times) != 0) {
    error = errno;
  }
  if (error != 0) {
    give_up(one);
    return error;
  }
  begun.push_back(std::move(one));
  return 0;
}

void DiskRecords::give_up(const Begun& begun) {
  unlinkat(folder_, begun.temporary.c_str(), 0);
  index_.remove(begun.temporary);
}

int DiskRecords::finish(const Begun& begun) {
  int error = intercept("sync");
  if (error == 0 && fsync(begun.file->get()) != 0) {
    error = errno;
  }
  if (error == 0) {
    error = intercept("rename");
  }
  if (error == 0 && renameat(folder_, begun.temporary.c_str(), folder_, begun.path.c_str()) != 0) {
    error = errno;
  }
  if (error != 0) {
    give_up(begun);
    return error;
  }
  index_.remove(begun.temporary);
  index_.put(begun.path, {file_bytes_, begun.use.use_time_ns, true});
  written_since_scan_ += file_bytes_;
  return 0;
}

int DiskRecords::sync_folder(const std::string& path) {
  if (const int error = intercept("sync folder"); error != 0) {
    return error;
  }
  const File folder(openat(folder_, path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return folder.is_open() && fsync(folder.get()) == 0 ? 0 : errno;
}

WriteReport DiskRecords::write(std::span<const RecordWrite> records) {
  WriteReport report;
  if (records.empty()) {
    return report;
  }
  int error = 0;
  const auto batch_bytes = file_bytes_ * static_cast<std::int64_t>(records.size());
  if (written_since_scan_ + batch_bytes > options_.cap_bytes / 16) {
    error = scan();
  }
  if (error == 0) {
    error = make_room(batch_bytes, false, report);
  }
  // All are written before the first is synced: that one's sync does most of the others' work.
  std::set<std::string> folders;  // to be synced
  std::vector<Begun> begun;
  bool has_made_room = false;
  for (std::size_t i = 0; i < records.size() && error == 0;) {
    std::string path = path_of(records[i].use.name);
    const std::string folder = folder_of(path);
    if (!records[i].replaces && index_.contains(path) &&
        faccessat(folder_, path.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
      report.stored.push_back(records[i++].use.name);
      continue;
    }
    if (mkdirat(folder_, folder.c_str(), kOwnerFolder) == 0) {
      folders.insert(identity_folder_);
    } else if (errno != EEXIST) {
      error = errno;
    }
    error = error == 0 ? begin(records[i], std::move(path), begun) : error;
    if (is_full(error) && !std::exchange(has_made_room, true)) {
      error = make_room(batch_bytes, true, report);
      continue;  // the same again
    }
    ++i;
  }
  for (const Begun& one : begun) {
    const int finish_error = finish(one);
    error = error == 0 ? finish_error : error;
    if (finish_error == 0) {
      folders.insert(folder_of(one.path));
      report.stored.push_back(one.use.name);
    }
  }
  for (const std::string& folder : folders) {
    if (const int sync_error = sync_folder(folder); error == 0) {
      error = sync_error;
    }
  }
  if (error != 0) {
    report.problem = status_of(options_.directory, error);
  }
  return report;
}

int DiskRecords::free_space(std::int64_t& available, std::int64_t& reserve) const {
  if (const int error = intercept("free space"); error != 0) {
    return error;
  }
  struct statvfs info = {};
  if (fstatvfs(folder_, &info) != 0) {
    return errno;
  }
  const auto unit = static_cast<std::int64_t>(info.f_frsize);
  available = static_cast<std::int64_t>(info.f_bavail) * unit;
  reserve = options_.reserve_bytes > 0
                ? options_.reserve_bytes
                : std::min(kMostReserve, static_cast<std::int64_t>(info.f_blocks) * unit / 20);
  return 0;
}

int DiskRecords::remove_oldest(std::int64_t bytes, WriteReport& report) {
  for (const std::string& path : index_.oldest(bytes)) {
    if (const int error = intercept("remove"); error != 0) {
      return error;
    }
    if (unlinkat(folder_, path.c_str(), 0) != 0 && errno != ENOENT) {
      return errno;
    }
    index_.remove(path);
    ++num_removed_;
    if (const auto name = record_name_in(path, identity_folder_)) {
      report.removed.push_back(*name);
    }
  }
  return 0;
}

int DiskRecords::make_room(std::int64_t bytes, bool is_disk_full, WriteReport& report) {
  std::int64_t over = index_.used_bytes() + bytes - options_.cap_bytes;
  if (over > 0) {
    const int error = remove_oldest(over + options_.cap_bytes / 10, report);
    if (error != 0) {
      return error;
    }
  }
  std::int64_t available = 0;
  std::int64_t reserve = 0;
  if (const int error = free_space(available, reserve); error != 0) {
    return error;
  }
  if (bytes == 0 || (!is_disk_full && available - bytes >= reserve)) {
    return 0;
  }
  if (reserve + bytes - available > index_.used_bytes()) {
    return ENOSPC;  // what others have taken: all of ours would go for nothing
  }
  over = std::max(bytes, reserve + bytes - available) + index_.used_bytes() / 10;
  if (const int error = remove_oldest(over, report); error != 0) {
    return error;
  }
  if (const int error = free_space(available, reserve); error != 0) {
    return error;
  }
  return available - bytes >= reserve ? 0 : ENOSPC;
}

}  // namespace karez
