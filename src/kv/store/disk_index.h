// Which of our files are in a folder, how large they are and when they were used: the bookkeeping
// of a cap, without any file operation.
//
// Names are paths below the store's folder. Knows what a scan found and what this process did
// since; other processes may have added and removed files meanwhile.
// Thread: every call from any; no call waits for a disk.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace karez {

class DiskIndex {
 public:
  struct File {
    std::int64_t bytes = 0;
    std::int64_t use_time_ns = 0;
    bool is_record = true;  // else a temporary file: counted, and nobody's victim
  };
  using Files = std::unordered_map<std::string, File>;

  // What a scan found takes the place of all that was known.
  void replace(Files files);
  void put(const std::string& path, const File& file);
  void remove(const std::string& path);
  void touch(const std::string& path, std::int64_t use_time_ns);
  bool contains(const std::string& path) const;

  std::int64_t used_bytes() const;
  std::int64_t num_records() const;
  // Those used longest ago, until so many bytes are together, or all.
  std::vector<std::string> oldest(std::int64_t bytes) const;

 private:
  mutable std::mutex mutex_;
  Files files_;
  std::int64_t used_bytes_ = 0;
  std::int64_t num_records_ = 0;
};

}  // namespace karez
