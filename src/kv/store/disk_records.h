// Records as files of a folder, that outlive the process and may be shared by several.
//
//   DIR/karez-v1/IIIIIIIIIIIIIIII/NN/N...N.kv   I: identity, N: name, in hexadecimal digits
//   DIR/karez-v1/tmp/TTTTTTTTTTTTTTTT.tmp       being written; locked (flock) by its writer
//
// A record is written to a temporary file, synced, renamed and its folder synced: at any moment it
// is complete or not there. A temporary file that nobody locks is left of a process that died, and
// is deleted by the next scan.
//
// The cap counts every file of that form, of all identities and processes, temporary ones too,
// in whole 4 KiB. Files of any other form are never read, counted or touched. Over the cap, what
// was used longest ago goes, down to nine tenths of it. Of a prompt the end goes first (RecordUse).
// Several processes may use one folder at once: names are unique, renames atomic, contents of one
// name equal. Each counts the files of the others when it scans: at its start and before it has
// written more than a sixteenth of the cap, or one call's records if they are more; so that
// together they may be above it by that much each.
//
// It keeps a reserve of the file system free. When that, or the disk, is full, it removes some of
// its own and tries once more, unless all of them would not be enough.
// Thread: as RecordBackend. No lock is held during a file operation.
// Owns: the folder's descriptor, its bookkeeping.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/store/block_record.h"
#include "kv/store/disk_index.h"
#include "kv/store/record_backend.h"

namespace karez {

struct DiskRecordsOptions {
  std::string directory;
  std::int64_t cap_bytes = 0;
  RecordShape shape;
  // Room that others need. 0: a twentieth of the file system, 256 MiB at most.
  std::int64_t reserve_bytes = 0;
  // For tests: called before each file operation with its name; an error number makes it fail.
  std::function<int(std::string_view operation)> intercept;
};

class DiskRecords final : public RecordBackend {
 public:
  // Of 16 records.
  static std::int64_t least_cap_bytes(const RecordShape& shape);
  // Makes the folder if only its last part is missing.
  // Fails: kInvalidArgument (cap below the least, not a folder), kNotFound, kIoError, naming it.
  static Expected<std::shared_ptr<DiskRecords>> open(DiskRecordsOptions options);
  ~DiskRecords() override;

  Expected<void> prepare() override;
  Expected<std::size_t> count_present(std::span<const RecordName> chain) override;
  Expected<ReadOutcome> read(const RecordName& name, std::span<std::byte> record) override;
  Expected<ReadOutcome> reread(const RecordName& name, std::span<std::byte> record) override {
    return read(name, record);
  }
  WriteReport write(std::span<const RecordWrite> records) override;
  void remove(const RecordName& name) override;
  void touch(std::span<const RecordUse> uses) override;
  BackendUsage usage() const override;
  std::string describe() const override;

  // Below the folder: "karez-v1/IIIIIIIIIIIIIIII/NN/N...N.kv".
  std::string path_of(const RecordName& name) const;

 private:
  DiskRecords(DiskRecordsOptions options, int folder);

  int intercept(std::string_view operation) const {
    return options_.intercept ? options_.intercept(operation) : 0;
  }
  // 0, or an error number.
  int make_folders();
  int scan();
  class File;
  struct Begun;  // a temporary file, written
  int begin(const RecordWrite& write, std::string path, std::vector<Begun>& begun);
  int finish(const Begun& begun);
  void give_up(const Begun& begun);
  int write_all(int file, std::span<const std::byte> bytes);
  // Until so many more bytes are within the cap, and the file system has them.
  int make_room(std::int64_t bytes, bool is_disk_full, WriteReport& report);
  int free_space(std::int64_t& available, std::int64_t& reserve) const;
  int remove_oldest(std::int64_t bytes, WriteReport& report);
  int sync_folder(const std::string& path);

  const DiskRecordsOptions options_;
  const int folder_;
  const std::string identity_folder_;  // "karez-v1/IIIIIIIIIIIIIIII"
  const std::int64_t file_bytes_;      // of a record, in whole 4 KiB
  DiskIndex index_;
  std::atomic<std::int64_t> num_removed_ = 0;
  std::int64_t written_since_scan_ = 0;
};

}  // namespace karez
