#include "kv/store/disk_records.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "support/store/prompt_records.h"
#include "support/store/temporary_folder.h"

namespace karez::test {
namespace disk_records_test {

namespace fs = std::filesystem;

constexpr std::int64_t kFileBytes = 4096;  // of a small record, as it counts

class DiskRecordsTest : public testing::Test {
 protected:
  std::shared_ptr<DiskRecords> open(std::int64_t cap_records = 64,
                                    const std::string& identity = "a model") {
    auto disk = DiskRecords::open({.directory = folder_.path(),
                                   .cap_bytes = cap_records * kFileBytes,
                                   .shape = small_shape(identity),
                                   .reserve_bytes = 1,
                                   .intercept = [this](std::string_view operation) {
                                     return fault_ ? fault_(operation) : 0;
                                   }});
    EXPECT_TRUE(disk);
    static_cast<void>((*disk)->prepare());
    return *disk;
  }
  WriteReport write(DiskRecords& disk, const std::vector<RecordKey>& keys,
                    const RecordShape& shape = small_shape()) {
    const std::int64_t base = ++time_ * 1'000'000'000;
    std::vector<std::vector<std::byte>> records;
    std::vector<RecordWrite> writes;
    for (const RecordKey& key : keys) {
      records.push_back(sealed_record(shape, key));
      writes.push_back({{key.name, base - key.index}, records.back()});
    }
    return disk.write(writes);
  }
  static std::size_t count(DiskRecords& disk, const std::vector<RecordKey>& keys) {
    std::size_t found = 0;
    for (const RecordKey& key : keys) {
      std::vector<std::byte> record(small_shape().record_bytes());
      const auto outcome = disk.read(key.name, record);
      found += outcome && *outcome == ReadOutcome::kRead &&
                       check_record(small_shape(), key, record) == RecordProblem::kNone
                   ? 1U
                   : 0U;
    }
    return found;
  }
  std::int64_t bytes_of_ours() const {
    std::int64_t bytes = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path() + "/karez-v1")) {
      bytes += entry.is_regular_file() ? static_cast<std::int64_t>(entry.file_size()) : 0;
    }
    return bytes;
  }
  std::vector<std::string> temporary_files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.path() + "/karez-v1/tmp")) {
      names.push_back(entry.path().string());
    }
    return names;
  }
  void put_file(const std::string& path, std::size_t bytes) const {
    fs::create_directories(fs::path(folder_.path() + "/" + path).parent_path());
    std::ofstream(folder_.path() + "/" + path) << std::string(bytes, 'x');
  }

  TemporaryFolder folder_;
  std::function<int(std::string_view)> fault_;
  std::int64_t time_ = 1'600'000'000;
};

TEST_F(DiskRecordsTest, OnlyItsOwnerMayReadThem) {
  const auto disk = open();
  const auto keys = prompt_keys(small_shape(), 1);
  write(*disk, keys);
  struct stat info = {};
  ASSERT_EQ(stat((folder_.path() + "/" + disk->path_of(keys[0].name)).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
  EXPECT_THAT(temporary_files(), testing::IsEmpty());
}

TEST_F(DiskRecordsTest, WhatAnEarlierProcessLeftCountsAndIsFound) {
  const auto keys = prompt_keys(small_shape(), 10);
  write(*open(), keys);
  const auto disk = open();
  EXPECT_EQ(disk->usage().records, 10);
  EXPECT_EQ(disk->usage().used_bytes, 10 * kFileBytes);
  EXPECT_EQ(count(*disk, keys), 10U);
}

TEST_F(DiskRecordsTest, TheCapHoldsForAllThatIsOursAndNothingElseIsTouched) {
  write(*open(1000, "another model"), prompt_keys(small_shape("another model"), 60),
        small_shape("another model"));
  put_file("notes.txt", 100'000);
  put_file("karez-v1/notes.txt", 100'000);
  put_file("karez-v1/0123456789abcdef/ab/notes.kv", 100'000);
  const std::int64_t foreign = 200'000;
  const auto disk = open(40);
  EXPECT_LE(bytes_of_ours() - foreign, 40 * kFileBytes);  // at the start already
  EXPECT_LE(disk->usage().used_bytes, 40 * kFileBytes);
  for (TokenId first = 1; first < 1000; first += 100) {
    EXPECT_FALSE(write(*disk, prompt_keys(small_shape(), 10, first)).problem);
    EXPECT_LE(bytes_of_ours() - foreign, 40 * kFileBytes);
    EXPECT_LE(disk->usage().used_bytes, 40 * kFileBytes);
  }
  EXPECT_TRUE(fs::exists(folder_.path() + "/notes.txt"));
  EXPECT_TRUE(fs::exists(folder_.path() + "/karez-v1/notes.txt"));
  EXPECT_TRUE(fs::exists(folder_.path() + "/karez-v1/0123456789abcdef/ab/notes.kv"));
  EXPECT_GT(disk->usage().removed, 0);
}

TEST_F(DiskRecordsTest, WhatWasUsedLongestAgoGoesFirstAndOfAPromptItsEnd) {
  const auto disk = open(24);
  const auto old_keys = prompt_keys(small_shape(), 10, 1);
  const auto used_keys = prompt_keys(small_shape(), 10, 1000);
  write(*disk, used_keys);
  write(*disk, old_keys);
  std::vector<RecordUse> uses;
  const std::int64_t now = ++time_ * 1'000'000'000;
  for (const RecordKey& key : used_keys) {
    uses.push_back({key.name, now - key.index});
  }
  disk->touch(uses);
  const WriteReport report = write(*disk, prompt_keys(small_shape(), 5, 2000));
  EXPECT_FALSE(report.removed.empty());
  EXPECT_EQ(count(*disk, used_keys), 10U);
  const std::size_t left = count(*disk, old_keys);
  EXPECT_LT(left, 10U);
  EXPECT_EQ(disk->count_present(std::vector<RecordName>{old_keys[0].name}).value(), 1U);
  EXPECT_EQ(count(*disk, {old_keys.begin(), old_keys.begin() + static_cast<long>(left)}), left);
}

TEST_F(DiskRecordsTest, AWriteThatBreaksOffLeavesNothing) {
  const auto disk = open();
  const auto keys = prompt_keys(small_shape(), 3);
  for (const char* step : {"open", "write", "sync", "rename"}) {
    fault_ = [step](std::string_view operation) { return operation == step ? EIO : 0; };
    const WriteReport report = write(*disk, keys);
    ASSERT_TRUE(report.problem) << step;
    EXPECT_EQ(report.problem->code(), StatusCode::kIoError);
    EXPECT_TRUE(report.stored.empty());
    fault_ = {};
    EXPECT_EQ(count(*disk, keys), 0U) << step;
    EXPECT_THAT(temporary_files(), testing::IsEmpty()) << step;
    EXPECT_EQ(disk->usage().used_bytes, 0) << step;
  }
  EXPECT_FALSE(write(*disk, keys).problem);
}

TEST_F(DiskRecordsTest, AFolderThatCannotBeSyncedIsAProblemAndItsRecordsAreWhole) {
  const auto disk = open();
  const auto keys = prompt_keys(small_shape(), 3);
  fault_ = [](std::string_view operation) { return operation == "sync folder" ? EIO : 0; };
  const WriteReport report = write(*disk, keys);
  ASSERT_TRUE(report.problem);
  EXPECT_EQ(report.problem->code(), StatusCode::kIoError);
  EXPECT_EQ(report.stored.size(), 3U);  // they may be gone after a power failure, as a whole
  EXPECT_EQ(count(*disk, keys), 3U);
  EXPECT_THAT(temporary_files(), testing::IsEmpty());
  EXPECT_EQ(disk->usage().used_bytes, 3 * kFileBytes);
  fault_ = {};
  EXPECT_FALSE(write(*disk, prompt_keys(small_shape(), 3, 5000)).problem);
}

TEST_F(DiskRecordsTest, FoldersThatItMakesAreSyncedInTheirParents) {
  int num_synced = 0;
  fault_ = [&](std::string_view operation) {
    if (operation == "sync folder") {
      ++num_synced;
    }
    return 0;
  };
  open();
  EXPECT_EQ(num_synced, 2);  // karez-v1 in the folder; its folders in karez-v1
  open();
  EXPECT_EQ(num_synced, 2);
  open(64, "another model");
  EXPECT_EQ(num_synced, 3);
}

TEST_F(DiskRecordsTest, WhatADeadProcessLeftIsDeletedAndWhatALivingOneWritesIsNot) {
  write(*open(), prompt_keys(small_shape(), 1));
  put_file("karez-v1/tmp/0123456789abcdef.tmp", 500);
  put_file("karez-v1/tmp/0123456789abcde0.tmp", 500);
  const std::string living = folder_.path() + "/karez-v1/tmp/0123456789abcde0.tmp";
  const int file = ::open(living.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_EQ(flock(file, LOCK_EX), 0);
  const auto disk = open();
  EXPECT_THAT(temporary_files(), testing::ElementsAre(living));
  EXPECT_EQ(disk->usage().used_bytes, 2 * kFileBytes);
  close(file);
}

TEST_F(DiskRecordsTest, AFullDiskMakesItRemoveSomeAndTryOnce) {
  const auto disk = open();
  const auto old_keys = prompt_keys(small_shape(), 20);
  write(*disk, old_keys);
  int num_full = 1;
  fault_ = [&](std::string_view operation) {
    return operation == "write" && num_full-- > 0 ? ENOSPC : 0;
  };
  const auto keys = prompt_keys(small_shape(), 2, 5000);
  WriteReport report = write(*disk, keys);
  EXPECT_FALSE(report.problem);
  EXPECT_FALSE(report.removed.empty());
  EXPECT_EQ(count(*disk, keys), 2U);
  fault_ = [](std::string_view operation) { return operation == "write" ? EDQUOT : 0; };
  report = write(*disk, prompt_keys(small_shape(), 2, 9000));
  ASSERT_TRUE(report.problem);
  EXPECT_EQ(report.problem->code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(temporary_files(), testing::IsEmpty());
  EXPECT_EQ(count(*disk, keys), 2U);  // not emptied either
}

TEST_F(DiskRecordsTest, AReserveOfTheFileSystemStaysFree) {
  const auto keys = prompt_keys(small_shape(), 2);
  const auto disk = DiskRecords::open({.directory = folder_.path(),
                                       .cap_bytes = 64 * kFileBytes,
                                       .shape = small_shape(),
                                       .reserve_bytes = std::int64_t{1} << 60,
                                       .intercept = {}})
                        .value();
  ASSERT_TRUE(disk->prepare());
  const WriteReport report = write(*disk, keys);
  ASSERT_TRUE(report.problem);
  EXPECT_EQ(report.problem->code(), StatusCode::kResourceExhausted);
}

TEST_F(DiskRecordsTest, WhereAllOfOursWouldNotBeEnoughNothingIsRemoved) {
  const auto keys = prompt_keys(small_shape(), 3);
  write(*open(), keys);
  const auto disk = DiskRecords::open({.directory = folder_.path(),
                                       .cap_bytes = 64 * kFileBytes,
                                       .shape = small_shape(),
                                       .reserve_bytes = std::int64_t{1} << 60,
                                       .intercept = {}})
                        .value();
  ASSERT_TRUE(disk->prepare());
  const WriteReport report = write(*disk, prompt_keys(small_shape(), 2, 5000));
  ASSERT_TRUE(report.problem);
  EXPECT_EQ(report.problem->code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(report.removed, testing::IsEmpty());
  EXPECT_EQ(count(*disk, keys), 3U);
}

TEST_F(DiskRecordsTest, ALargeCallCountsWhatOthersHaveWritten) {
  const auto one = open();
  const auto other = open();
  for (int i = 0; i < 20; ++i) {
    write(*one, prompt_keys(small_shape(), 3, 100 + i * 1000));
  }
  write(*other, prompt_keys(small_shape(), 16, 50'000));
  EXPECT_LE(bytes_of_ours(), 64 * kFileBytes);
}

TEST_F(DiskRecordsTest, AFolderThatCannotBeWrittenToIsStillRead) {
  const auto keys = prompt_keys(small_shape(), 3);
  write(*open(), keys);
  fault_ = [](std::string_view operation) {
    return operation == "mkdir" || operation == "open" || operation == "touch" ? EROFS : 0;
  };
  const auto disk = open();
  const auto prepared = disk->prepare();
  ASSERT_FALSE(prepared);
  EXPECT_EQ(prepared.error().code(), StatusCode::kUnavailable);
  EXPECT_EQ(write(*disk, prompt_keys(small_shape(), 1, 77)).problem->code(),
            StatusCode::kUnavailable);
  EXPECT_EQ(count(*disk, keys), 3U);
}

TEST_F(DiskRecordsTest, WhatIsNotAPlainFileIsNeitherReadNorRemoved) {
  const auto disk = open();
  const auto keys = prompt_keys(small_shape(), 4);
  write(*disk, {keys[0]});
  const auto at = [&](std::size_t i) { return folder_.path() + "/" + disk->path_of(keys[i].name); };
  for (std::size_t i = 1; i < 4; ++i) {
    fs::create_directories(fs::path(at(i)).parent_path());
  }
  ASSERT_EQ(mkfifo(at(1).c_str(), 0600), 0);  // nobody opens its other end
  fs::create_symlink(at(0), at(2));
  fs::create_directory(at(3));
  std::vector<std::byte> record(small_shape().record_bytes());
  for (std::size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(disk->read(keys[i].name, record).value(), ReadOutcome::kAbsent) << i;
    disk->remove(keys[i].name);
    EXPECT_TRUE(fs::exists(fs::symlink_status(at(i)))) << i;
  }
}

TEST_F(DiskRecordsTest, TwoProcessesOfTwoModelsKeepApart) {
  const auto one = open(64, "one");
  const auto two = open(64, "two");
  const RecordShape shape_one = small_shape("one");
  const RecordShape shape_two = small_shape("two");
  write(*one, prompt_keys(shape_one, 5), shape_one);
  write(*two, prompt_keys(shape_two, 5), shape_two);
  std::vector<std::byte> record(shape_one.record_bytes());
  for (const RecordKey& key : prompt_keys(shape_one, 5)) {
    ASSERT_EQ(one->read(key.name, record).value(), ReadOutcome::kRead);
    EXPECT_EQ(check_record(shape_one, key, record), RecordProblem::kNone);
    EXPECT_EQ(two->read(key.name, record).value(), ReadOutcome::kAbsent);
  }
  const auto third = open(64, "three");
  EXPECT_EQ(third->usage().records, 10);
}

TEST(DiskRecords, SaysWhatIsWrongWithAFolderOrACap) {
  const TemporaryFolder folder;
  const auto open = [](const std::string& path, std::int64_t cap) {
    return DiskRecords::open({.directory = path,
                              .cap_bytes = cap,
                              .shape = small_shape(),
                              .reserve_bytes = 0,
                              .intercept = {}});
  };
  EXPECT_EQ(open(folder.path() + "/a/b", 1 << 20).error().code(), StatusCode::kNotFound);
  std::ofstream(folder.path() + "/file") << "x";
  EXPECT_EQ(open(folder.path() + "/file", 1 << 20).error().code(), StatusCode::kInvalidArgument);
  const auto small = open(folder.path(), 10'000);
  ASSERT_FALSE(small);
  EXPECT_THAT(small.error().message(),
              testing::AllOf(testing::HasSubstr("10000"), testing::HasSubstr("65536")));
  EXPECT_TRUE(open(folder.path() + "/new", 1 << 20));
}

}  // namespace disk_records_test
}  // namespace karez::test
