// What every place where records are kept must do.
#include "kv/store/record_backend.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kv/store/disk_records.h"
#include "kv/store/redis_records.h"
#include "support/store/memory_records.h"
#include "support/store/prompt_records.h"
#include "support/store/redis_server.h"
#include "support/store/temporary_folder.h"

namespace karez::test {
namespace record_backend_test {

// A medium, and ways to it: two of them are two processes.
class Medium {
 public:
  virtual ~Medium() = default;
  virtual std::shared_ptr<RecordBackend> open(const RecordShape& shape) = 0;
};

class DiskMedium final : public Medium {
 public:
  std::shared_ptr<RecordBackend> open(const RecordShape& shape) override {
    return DiskRecords::open({.directory = folder_.path(),
                              .cap_bytes = 1 << 20,
                              .shape = shape,
                              .reserve_bytes = 1,
                              .intercept = {}})
        .value();
  }

 private:
  TemporaryFolder folder_;
};

class MemoryMedium final : public Medium {
 public:
  std::shared_ptr<RecordBackend> open(const RecordShape&) override { return records_; }

 private:
  std::shared_ptr<MemoryRecords> records_ = std::make_shared<MemoryRecords>();
};

class RedisMedium final : public Medium {
 public:
  std::shared_ptr<RecordBackend> open(const RecordShape& shape) override {
    return std::make_shared<RedisRecords>(
        RedisRecordsOptions{.address = server_.address(), .shape = shape});
  }

 private:
  RedisServer server_;
};

struct MediumCase {
  const char* name;
  std::function<std::unique_ptr<Medium>()> make;
};

class RecordBackendTest : public testing::TestWithParam<MediumCase> {
 protected:
  void SetUp() override {
    medium_ = GetParam().make();
    backend_ = open();
  }
  std::shared_ptr<RecordBackend> open() {
    auto backend = medium_->open(shape_);
    EXPECT_TRUE(backend->prepare());
    return backend;
  }
  WriteReport write(RecordBackend& backend, const std::vector<RecordKey>& keys) {
    std::vector<std::vector<std::byte>> records;
    std::vector<RecordWrite> writes;
    for (const RecordKey& key : keys) {
      records.push_back(sealed_record(shape_, key));
      writes.push_back({{key.name, ++time_}, records.back()});
    }
    return backend.write(writes);
  }
  ReadOutcome read(RecordBackend& backend, const RecordName& name) {
    record_.assign(shape_.record_bytes(), std::byte{0});
    return backend.read(name, record_).value();
  }
  std::size_t count(RecordBackend& backend, const std::vector<RecordKey>& keys) {
    std::vector<RecordName> names;
    for (const RecordKey& key : keys) {
      names.push_back(key.name);
    }
    return backend.count_present(names).value();
  }

  const RecordShape shape_ = small_shape();
  std::unique_ptr<Medium> medium_;
  std::shared_ptr<RecordBackend> backend_;
  std::vector<std::byte> record_;
  std::int64_t time_ = 1'700'000'000'000'000'000;
};

TEST_P(RecordBackendTest, GivesBackWhatWasWritten) {
  const auto keys = prompt_keys(shape_, 20);
  EXPECT_EQ(count(*backend_, keys), 0U);
  const WriteReport report = write(*backend_, keys);
  EXPECT_EQ(report.stored.size(), keys.size());
  EXPECT_FALSE(report.problem);
  EXPECT_EQ(count(*backend_, keys), keys.size());
  for (const RecordKey& key : keys) {
    ASSERT_EQ(read(*backend_, key.name), ReadOutcome::kRead);
    EXPECT_EQ(check_record(shape_, key, record_), RecordProblem::kNone);
  }
}

TEST_P(RecordBackendTest, CountsUpToTheFirstGap) {
  auto keys = prompt_keys(shape_, 5);
  write(*backend_, {keys[0], keys[1], keys[3]});
  EXPECT_EQ(count(*backend_, keys), 2U);
  EXPECT_EQ(read(*backend_, keys[2].name), ReadOutcome::kAbsent);
}

TEST_P(RecordBackendTest, OneThatIsRemovedIsGone) {
  const auto keys = prompt_keys(shape_, 2);
  write(*backend_, keys);
  backend_->remove(keys[0].name);
  backend_->remove(keys[0].name);
  EXPECT_EQ(read(*backend_, keys[0].name), ReadOutcome::kAbsent);
  EXPECT_EQ(count(*backend_, keys), 0U);
  EXPECT_EQ(read(*backend_, keys[1].name), ReadOutcome::kRead);
}

TEST_P(RecordBackendTest, AnotherProcessFindsThemAndMayWriteThemAgain) {
  const auto keys = prompt_keys(shape_, 4);
  const auto other = open();
  write(*backend_, keys);
  EXPECT_EQ(count(*other, keys), keys.size());
  EXPECT_EQ(read(*other, keys[3].name), ReadOutcome::kRead);
  EXPECT_EQ(write(*other, keys).stored.size(), keys.size());
  EXPECT_EQ(read(*backend_, keys[3].name), ReadOutcome::kRead);
  EXPECT_EQ(check_record(shape_, keys[3], record_), RecordProblem::kNone);
}

TEST_P(RecordBackendTest, ARecordOfAnotherLengthIsSaidToBeOne) {
  const auto keys = prompt_keys(shape_, 1);
  const std::vector<std::byte> half(shape_.record_bytes() / 2);
  const RecordWrite write{{keys[0].name, time_}, half};
  EXPECT_FALSE(backend_->write(std::span(&write, 1)).problem);
  EXPECT_EQ(read(*backend_, keys[0].name), ReadOutcome::kWrongLength);
}

TEST_P(RecordBackendTest, OneThatIsThereStaysUnlessItIsReplaced) {
  const auto keys = prompt_keys(shape_, 1);
  const std::vector<std::byte> half(shape_.record_bytes() / 2);
  const RecordWrite bad{{keys[0].name, time_}, half};
  backend_->write(std::span(&bad, 1));
  EXPECT_EQ(write(*backend_, keys).stored.size(), 1U);
  record_.assign(shape_.record_bytes(), std::byte{0});
  EXPECT_EQ(backend_->reread(keys[0].name, record_).value(), ReadOutcome::kWrongLength);
  const auto whole = sealed_record(shape_, keys[0]);
  const RecordWrite replacing{{keys[0].name, ++time_}, whole, true};
  EXPECT_EQ(backend_->write(std::span(&replacing, 1)).stored.size(), 1U);
  EXPECT_EQ(backend_->reread(keys[0].name, record_).value(), ReadOutcome::kRead);
  EXPECT_EQ(check_record(shape_, keys[0], record_), RecordProblem::kNone);
  EXPECT_EQ(read(*backend_, keys[0].name), ReadOutcome::kRead);
}

TEST_P(RecordBackendTest, ReplacingOneThatIsNotThereWritesIt) {
  const auto keys = prompt_keys(shape_, 1);
  record_.assign(shape_.record_bytes(), std::byte{0});
  EXPECT_EQ(backend_->reread(keys[0].name, record_).value(), ReadOutcome::kAbsent);
  const auto whole = sealed_record(shape_, keys[0]);
  const RecordWrite replacing{{keys[0].name, ++time_}, whole, true};
  EXPECT_EQ(backend_->write(std::span(&replacing, 1)).stored.size(), 1U);
  EXPECT_EQ(read(*backend_, keys[0].name), ReadOutcome::kRead);
}

INSTANTIATE_TEST_SUITE_P(
    All, RecordBackendTest,
    testing::Values(MediumCase{"Memory", [] { return std::make_unique<MemoryMedium>(); }},
                    MediumCase{"Disk", [] { return std::make_unique<DiskMedium>(); }},
                    MediumCase{"Redis", [] { return std::make_unique<RedisMedium>(); }}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace record_backend_test
}  // namespace karez::test
