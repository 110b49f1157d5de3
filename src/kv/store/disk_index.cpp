#include "kv/store/disk_index.h"

#include <algorithm>
#include <utility>

namespace karez {

void DiskIndex::replace(Files files) {
  std::int64_t bytes = 0;
  std::int64_t records = 0;
  for (const auto& [path, file] : files) {
    bytes += file.bytes;
    records += file.is_record ? 1 : 0;
  }
  const std::lock_guard lock(mutex_);
  files_ = std::move(files);
  used_bytes_ = bytes;
  num_records_ = records;
}

void DiskIndex::put(const std::string& path, const File& file) {
  const std::lock_guard lock(mutex_);
  File& known = files_[path];
  used_bytes_ += file.bytes - known.bytes;
  num_records_ += (file.is_record ? 1 : 0) - (known.bytes > 0 && known.is_record ? 1 : 0);
  known = file;
}

void DiskIndex::remove(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(path);
  if (found != files_.end()) {
    used_bytes_ -= found->second.bytes;
    num_records_ -= found->second.is_record ? 1 : 0;
    files_.erase(found);
  }
}

void DiskIndex::touch(const std::string& path, std::int64_t use_time_ns) {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(path);
  if (found != files_.end()) {
    found->second.use_time_ns = std::max(found->second.use_time_ns, use_time_ns);
  }
}

bool DiskIndex::contains(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  return files_.contains(path);
}

std::int64_t DiskIndex::used_bytes() const {
  const std::lock_guard lock(mutex_);
  return used_bytes_;
}

std::int64_t DiskIndex::num_records() const {
  const std::lock_guard lock(mutex_);
  return num_records_;
}

std::vector<std::string> DiskIndex::oldest(std::int64_t bytes) const {
  struct Candidate {
    std::int64_t use_time_ns;
    std::int64_t bytes;
    const std::string* path;
  };
  const std::lock_guard lock(mutex_);
  std::vector<Candidate> candidates;
  candidates.reserve(files_.size());
  for (const auto& [path, file] : files_) {
    if (file.is_record) {
      candidates.push_back({file.use_time_ns, file.bytes, &path});
    }
  }
  std::ranges::sort(candidates, {}, &Candidate::use_time_ns);
  std::vector<std::string> paths;
  for (const Candidate& candidate : candidates) {
    if (bytes <= 0) {
      break;
    }
    bytes -= candidate.bytes;
    paths.push_back(*candidate.path);
  }
  return paths;
}

}  // namespace karez
