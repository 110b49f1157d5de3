// Records in memory, with a hook before each call: it may fail the call, or hold it.
//
// Thread: as RecordBackend; the hook is called without a lock. Owns: the records.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kv/store/record_backend.h"

namespace karez::test {

class MemoryRecords final : public RecordBackend {
 public:
  // None: the call goes on.
  using Hook = std::function<std::optional<Status>(std::string_view call)>;
  explicit MemoryRecords(Hook hook = {}) : hook_(std::move(hook)) {}

  Expected<void> prepare() override { return problem("prepare"); }
  Expected<std::size_t> count_present(std::span<const RecordName> chain) override {
    if (auto failed = problem("find"); !failed) {
      return fail(failed.error());
    }
    const std::lock_guard lock(mutex_);
    std::size_t count = 0;
    while (count < chain.size() && records_.contains(chain[count])) {
      ++count;
    }
    return count;
  }
  Expected<ReadOutcome> read(const RecordName& name, std::span<std::byte> record) override {
    if (auto failed = problem("read"); !failed) {
      return fail(failed.error());
    }
    return copy_out(name, record);
  }
  Expected<ReadOutcome> reread(const RecordName& name, std::span<std::byte> record) override {
    if (auto failed = problem("reread"); !failed) {
      return fail(failed.error());
    }
    return copy_out(name, record);
  }
  WriteReport write(std::span<const RecordWrite> records) override {
    WriteReport report;
    for (const RecordWrite& write : records) {
      if (auto failed = problem("write"); !failed) {
        report.problem = failed.error();
        break;
      }
      const std::lock_guard lock(mutex_);
      if (write.replaces || !records_.contains(write.use.name)) {
        records_[write.use.name].assign(write.record.begin(), write.record.end());
        ++num_written_;
      }
      report.stored.push_back(write.use.name);
    }
    return report;
  }
  void remove(const RecordName& name) override {
    const std::lock_guard lock(mutex_);
    records_.erase(name);
  }
  // A hook's failure is forgotten, as a medium's is.
  void touch(std::span<const RecordUse> uses) override {
    if (auto failed = problem("touch"); !failed) {
      return;
    }
    const std::lock_guard lock(mutex_);
    num_touched_ += uses.size();
  }
  BackendUsage usage() const override { return {}; }
  std::string describe() const override { return "memory"; }

  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return records_.size();
  }
  std::size_t num_touched() const {
    const std::lock_guard lock(mutex_);
    return num_touched_;
  }
  // Those that were there already are not counted.
  std::size_t num_written() const {
    const std::lock_guard lock(mutex_);
    return num_written_;
  }
  // False: it is not there.
  bool flip_a_bit(const RecordName& name) {
    const std::lock_guard lock(mutex_);
    const auto found = records_.find(name);
    if (found == records_.end()) {
      return false;
    }
    found->second.back() ^= std::byte{1};
    return true;
  }
  // Calls change(bytes) for every record.
  void change_all(const std::function<void(std::vector<std::byte>&)>& change) {
    const std::lock_guard lock(mutex_);
    for (auto& [name, bytes] : records_) {
      change(bytes);
    }
  }

 private:
  ReadOutcome copy_out(const RecordName& name, std::span<std::byte> record) const {
    const std::lock_guard lock(mutex_);
    const auto found = records_.find(name);
    if (found == records_.end()) {
      return ReadOutcome::kAbsent;
    }
    if (found->second.size() != record.size()) {
      return ReadOutcome::kWrongLength;
    }
    std::ranges::copy(found->second, record.begin());
    return ReadOutcome::kRead;
  }
  Expected<void> problem(std::string_view call) const {
    if (hook_) {
      if (auto status = hook_(call)) {
        return fail(std::move(*status));
      }
    }
    return {};
  }

  const Hook hook_;
  mutable std::mutex mutex_;
  std::map<RecordName, std::vector<std::byte>> records_;
  std::size_t num_touched_ = 0;
  std::size_t num_written_ = 0;
};

}  // namespace karez::test
