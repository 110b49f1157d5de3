#include "kv/store/prefix_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kv/store/disk_records.h"
#include "support/gate.h"
#include "support/store/memory_records.h"
#include "support/store/prompt_records.h"
#include "support/store/temporary_folder.h"

namespace karez::test {
namespace prefix_store_test {

using std::chrono::milliseconds;

// Stands still until it is moved; the lanes read it.
class MovedClock final : public Clock {
 public:
  TimePoint now() const override { return TimePoint(Duration(ticks_.load())); }
  void sleep_until(TimePoint) const override {}
  void advance(Duration duration) { ticks_ += duration.count(); }

 private:
  std::atomic<Duration::rep> ticks_ = Duration(std::chrono::hours(1)).count();
};

class PrefixStoreTest : public testing::Test {
 protected:
  PrefixStoreTest() {
    options_.shape = small_shape();
    options_.breaker.first_pause = milliseconds(1);
    options_.breaker.longest_pause = milliseconds(1);
  }
  void start(std::shared_ptr<RecordBackend> backend) {
    store_ = std::make_unique<PrefixStore>(options_, std::move(backend));
  }
  void write(const std::vector<RecordKey>& keys) {
    for (const RecordKey& key : keys) {
      auto buffer = store_->room_to_write();
      ASSERT_TRUE(buffer);
      fill_payload(key, buffer->payload());
      store_->write(key, 1, std::move(*buffer));
    }
  }
  PrefixStore::Result wait_for(std::optional<PrefixStore::Ticket> ticket) {
    EXPECT_TRUE(ticket);
    while (ticket) {
      std::vector<PrefixStore::Result> results;
      store_->poll(results);
      for (PrefixStore::Result& result : results) {
        if (result.ticket == *ticket) {
          return std::move(result);
        }
      }
      std::this_thread::yield();
    }
    return {};
  }
  template <class Condition>
  void wait_until(const Condition& condition) {
    while (!condition()) {
      std::vector<PrefixStore::Result> results;
      store_->poll(results);
      std::this_thread::yield();
    }
  }
  static std::vector<RecordName> names(const std::vector<RecordKey>& keys) {
    std::vector<RecordName> all;
    for (const RecordKey& key : keys) {
      all.push_back(key.name);
    }
    return all;
  }

  PrefixStoreOptions options_;
  std::unique_ptr<PrefixStore> store_;
};

TEST_F(PrefixStoreTest, GivesBackWhatWasWritten) {
  start(std::make_shared<MemoryRecords>());
  const auto keys = prompt_keys(options_.shape, 40);
  write(keys);
  wait_until([&] { return store_->stats().stored_blocks == 40; });
  EXPECT_EQ(wait_for(store_->find(names(keys))).num_present, 40U);
  const auto result = wait_for(store_->read(keys[7]));
  ASSERT_TRUE(result.buffer);
  std::vector<std::byte> expected(options_.shape.payload_bytes);
  fill_payload(keys[7], expected);
  EXPECT_TRUE(std::ranges::equal(result.buffer->payload(), expected));
  EXPECT_TRUE(store_->is_known(keys[39].name));
}

TEST_F(PrefixStoreTest, WritesWhatItAcceptedBeforeItEnds) {
  const auto memory = std::make_shared<MemoryRecords>();
  start(memory);
  write(prompt_keys(options_.shape, 50));
  store_.reset();
  EXPECT_EQ(memory->size(), 50U);
}

TEST_F(PrefixStoreTest, ABadRecordIsAMissAndRemoved) {
  const auto memory = std::make_shared<MemoryRecords>();
  start(memory);
  const auto keys = prompt_keys(options_.shape, 1);
  write(keys);
  wait_until([&] { return store_->stats().stored_blocks == 1; });
  memory->change_all([](std::vector<std::byte>& bytes) { bytes.back() ^= std::byte{1}; });
  EXPECT_FALSE(wait_for(store_->read(keys[0])).buffer);
  EXPECT_EQ(store_->stats().bad_records, 1);
  EXPECT_EQ(memory->size(), 0U);
  EXPECT_FALSE(store_->is_known(keys[0].name));
  write(keys);  // and it can be stored again
  wait_until([&] { return memory->size() == 1; });
}

TEST_F(PrefixStoreTest, OfThoseInDoubtTheBadOnesAreWrittenAgainAndTheOthersStay) {
  std::atomic<int> num_rereads = 0;
  const auto memory =
      std::make_shared<MemoryRecords>([&](std::string_view call) -> std::optional<Status> {
        num_rereads += call == "reread" ? 1 : 0;
        return std::nullopt;
      });
  start(memory);
  const auto keys = prompt_keys(options_.shape, 8);
  write(keys);
  wait_until([&] { return store_->stats().stored_blocks == 8; });
  EXPECT_EQ(num_rereads, 0);
  ASSERT_TRUE(memory->flip_a_bit(keys[3].name));
  ASSERT_TRUE(memory->flip_a_bit(keys[6].name));
  memory->remove(keys[7].name);
  store_->doubt(std::vector<RecordName>{keys[2].name, keys[3].name, keys[6].name, keys[7].name});
  EXPECT_EQ(wait_for(store_->find(names(keys))).num_present, 7U);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(store_->is_known(keys[i].name), i < 2 || i == 4 || i == 5) << i;  // not by a find
  }
  write({keys[2], keys[3], keys[6], keys[7]});
  wait_until([&] { return store_->stats().stored_blocks == 12; });
  EXPECT_EQ(num_rereads, 4);
  EXPECT_EQ(memory->num_written(), 8U + 3);
  EXPECT_EQ(memory->num_touched(), 1U);  // it was used, too
  EXPECT_EQ(store_->stats().bad_records, 2);
  for (const RecordKey& key : keys) {
    EXPECT_TRUE(store_->is_known(key.name));
    EXPECT_TRUE(wait_for(store_->read(key)).buffer);
  }
  // Nobody doubts them any more.
  write(keys);
  wait_until([&] { return store_->stats().stored_blocks == 20; });
  EXPECT_EQ(num_rereads, 4);
}

TEST_F(PrefixStoreTest, ADoubtEndsWithARecordThatIsWholeAndNotWithAWriteThatFails) {
  std::atomic<bool> fails = false;
  const auto memory =
      std::make_shared<MemoryRecords>([&](std::string_view call) -> std::optional<Status> {
        if (call == "write" && fails) {
          return Status(StatusCode::kIoError, "broken");
        }
        return std::nullopt;
      });
  start(memory);
  const auto keys = prompt_keys(options_.shape, 2);
  write(keys);
  wait_until([&] { return store_->stats().stored_blocks == 2; });
  ASSERT_TRUE(memory->flip_a_bit(keys[1].name));
  store_->doubt(names(keys));
  EXPECT_TRUE(wait_for(store_->read(keys[0])).buffer);
  EXPECT_TRUE(store_->is_known(keys[0].name));
  fails = true;
  write({keys[1]});
  wait_until([&] { return store_->stats().dropped_blocks == 1; });
  wait_until([&] { return !store_->is_known(keys[1].name); });
  fails = false;
  write({keys[1]});
  wait_until([&] { return store_->stats().stored_blocks == 3; });
  EXPECT_TRUE(wait_for(store_->read(keys[1])).buffer);
}

TEST_F(PrefixStoreTest, WhatCannotBeReadAgainIsReplacedAndTheRestOfItsBatchIsNotTried) {
  const auto gate = std::make_shared<Gate>();
  std::atomic<bool> fails = false;
  std::atomic<bool> holds = false;
  std::atomic<bool> is_held = false;
  std::atomic<int> num_rereads = 0;
  const auto memory =
      std::make_shared<MemoryRecords>([&, gate](std::string_view call) -> std::optional<Status> {
        if (call == "touch" && holds) {
          is_held = true;
          gate->pass();
        }
        if (call == "reread") {
          ++num_rereads;
          return fails ? std::optional(Status(StatusCode::kIoError, "broken")) : std::nullopt;
        }
        return std::nullopt;
      });
  start(memory);
  const auto keys = prompt_keys(options_.shape, 8);
  write(keys);
  wait_until([&] { return store_->stats().stored_blocks == 8; });
  fails = true;
  holds = true;
  store_->doubt(names(keys));
  store_->touch(std::vector<RecordUse>{{keys[0].name, 2}});
  wait_until([&] { return is_held.load(); });
  write(keys);  // in one batch
  gate->open();
  wait_until([&] { return store_->stats().stored_blocks == 16; });
  EXPECT_EQ(num_rereads, 1);
  EXPECT_EQ(memory->num_written(), 16U);
  EXPECT_FALSE(store_->stats().stores_stopped);
}

TEST_F(PrefixStoreTest, ACheckThatHangsStopsStoresAndNobodyWaits) {
  static MovedClock clock;  // lanes that are left behind read it
  const auto gate = std::make_shared<Gate>();
  std::atomic<bool> hangs = false;
  const auto memory =
      std::make_shared<MemoryRecords>([&, gate](std::string_view call) -> std::optional<Status> {
        if (call == "reread") {
          hangs = true;
          gate->pass();
        }
        return std::nullopt;
      });
  store_ = std::make_unique<PrefixStore>(options_, memory, clock);
  const auto keys = prompt_keys(options_.shape, 1);
  store_->doubt(names(keys));
  write(keys);
  wait_until([&] { return hangs.load(); });
  clock.advance(options_.store_limit + milliseconds(1));
  EXPECT_FALSE(store_->room_to_write());
  EXPECT_TRUE(store_->stats().stores_stopped);
  EXPECT_FALSE(store_->stats().loads_stopped);
  gate->open();
  wait_until([&] { return store_->stats().stored_blocks == 1; });
  wait_until([&] { return !store_->stats().stores_stopped; });
}

TEST_F(PrefixStoreTest, ARecordThatIsMissingIsToldFromOneThatCannotBeRead) {
  std::atomic<bool> fails = false;
  const auto memory =
      std::make_shared<MemoryRecords>([&](std::string_view call) -> std::optional<Status> {
        if (call == "read" && fails) {
          return Status(StatusCode::kIoError, "broken");
        }
        return std::nullopt;
      });
  start(memory);
  const auto keys = prompt_keys(options_.shape, 2);
  write({keys[0]});
  wait_until([&] { return store_->stats().stored_blocks == 1; });
  EXPECT_FALSE(wait_for(store_->read(keys[0])).is_missing);
  EXPECT_TRUE(wait_for(store_->read(keys[1])).is_missing);
  fails = true;
  EXPECT_FALSE(wait_for(store_->read(keys[0])).is_missing);
  fails = false;
  ASSERT_TRUE(memory->flip_a_bit(keys[0].name));
  EXPECT_TRUE(wait_for(store_->read(keys[0])).is_missing);
}

TEST_F(PrefixStoreTest, ABadRecordThatNobodyWaitsForAnyMoreIsNotRemoved) {
  const auto gate = std::make_shared<Gate>();
  std::atomic<bool> is_held = false;
  const auto memory =
      std::make_shared<MemoryRecords>([&, gate](std::string_view call) -> std::optional<Status> {
        if (call == "read") {
          is_held = true;
          gate->pass();
        }
        return std::nullopt;
      });
  start(memory);
  const auto keys = prompt_keys(options_.shape, 1);
  write(keys);
  wait_until([&] { return store_->stats().stored_blocks == 1; });
  ASSERT_TRUE(memory->flip_a_bit(keys[0].name));
  const auto ticket = store_->read(keys[0]);
  ASSERT_TRUE(ticket);
  wait_until([&] { return is_held.load(); });
  store_->cancel(*ticket);
  gate->open();
  wait_for(store_->find(names(keys)));  // behind it
  EXPECT_EQ(memory->size(), 1U);
}

TEST_F(PrefixStoreTest, ABitFlippedAnywhereInAFileIsAMissAndTheFileIsRemoved) {
  const TemporaryFolder folder;
  const auto disk = DiskRecords::open({.directory = folder.path(),
                                       .cap_bytes = 1 << 20,
                                       .shape = options_.shape,
                                       .reserve_bytes = 1,
                                       .intercept = {}})
                        .value();
  start(disk);
  const auto keys = prompt_keys(options_.shape, 1);
  const std::string path = folder.path() + "/" + disk->path_of(keys[0].name);
  std::int64_t bad = 0;
  // Offset 0, each header field, the middle, the last byte.
  for (const std::size_t at : {0, 8, 12, 16, 48, 80, 84, 88, 152, 160, 168, 184, 192, 1600, 3191}) {
    write(keys);
    wait_until([&] { return std::filesystem::exists(path); });
    wait_until([&] { return store_->stats().stored_blocks == bad + 1; });
    {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(static_cast<std::streamoff>(at));
      const auto byte = static_cast<char>(file.get() ^ 0x10);
      file.seekp(static_cast<std::streamoff>(at));
      file.put(byte);
    }
    EXPECT_FALSE(wait_for(store_->read(keys[0])).buffer) << at;
    EXPECT_EQ(store_->stats().bad_records, ++bad);
    EXPECT_FALSE(std::filesystem::exists(path)) << at;
  }
  write(keys);
  wait_until([&] { return store_->stats().stored_blocks == bad + 1; });
  std::filesystem::resize_file(path, 100);
  EXPECT_FALSE(wait_for(store_->read(keys[0])).buffer);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(PrefixStoreTest, AFailedWriteIsNotFoundLater) {
  std::atomic<int> num_writes = 0;
  const auto memory =
      std::make_shared<MemoryRecords>([&](std::string_view call) -> std::optional<Status> {
        if (call == "write" && ++num_writes == 3) {
          return Status(StatusCode::kIoError, "broken");
        }
        return std::nullopt;
      });
  start(memory);
  const auto keys = prompt_keys(options_.shape, 5);
  write(keys);
  wait_until([&] {
    const PrefixStoreStats stats = store_->stats();
    return stats.stored_blocks + stats.dropped_blocks == 5;
  });
  EXPECT_EQ(store_->stats().store_errors, 1);
  wait_until([&] { return !store_->is_known(keys[2].name); });
  EXPECT_EQ(wait_for(store_->find(names(keys))).num_present, 2U);
}

TEST_F(PrefixStoreTest, WhatHangsIsLeftAloneAndLeftBehind) {
  static MovedClock clock;  // lanes that are left behind read it
  const auto gate = std::make_shared<Gate>();
  std::atomic<bool> hangs = false;
  std::vector<std::string> lines;
  std::mutex lines_mutex;
  options_.log = [&](std::string_view line) {
    const std::lock_guard lock(lines_mutex);
    lines.emplace_back(line);
  };
  const auto memory =
      std::make_shared<MemoryRecords>([&, gate](std::string_view call) -> std::optional<Status> {
        if (call == "read") {
          hangs = true;
          gate->pass();
        }
        return std::nullopt;
      });
  store_ = std::make_unique<PrefixStore>(options_, memory, clock);
  const auto keys = prompt_keys(options_.shape, 2);
  const auto late = store_->read(keys[0]);
  wait_until([&] { return hangs.load(); });
  EXPECT_FALSE(store_->stats().loads_stopped);
  clock.advance(options_.load_limit + milliseconds(1));
  EXPECT_FALSE(wait_for(late).buffer);
  EXPECT_EQ(store_->stats().late_loads, 1);
  EXPECT_TRUE(store_->stats().loads_stopped);
  clock.advance(options_.breaker.longest_pause + milliseconds(1));
  EXPECT_FALSE(store_->find(names(keys)));  // the thread hangs, whatever the pause
  EXPECT_FALSE(store_->read(keys[1]));
  write(keys);  // stores have a thread of their own
  wait_until([&] { return store_->stats().stored_blocks == 2; });
  gate->open();
  wait_until([&] { return !store_->stats().loads_stopped; });
  EXPECT_TRUE(wait_for(store_->read(keys[0])).buffer);
  const std::lock_guard lock(lines_mutex);
  EXPECT_THAT(lines, testing::ElementsAre(testing::HasSubstr("loads stop for a while"),
                                          testing::HasSubstr("loads work again")));
}

TEST_F(PrefixStoreTest, EndsWhileAThreadHangs) {
  const auto gate = std::make_shared<Gate>();
  options_.load_limit = milliseconds(5);
  options_.store_limit = milliseconds(5);
  start(std::make_shared<MemoryRecords>([gate](std::string_view) -> std::optional<Status> {
    gate->pass();
    return std::nullopt;
  }));
  const auto keys = prompt_keys(options_.shape, 1);
  wait_for(store_->read(keys[0]));
  wait_until([&] { return store_->stats().stores_stopped; });
  EXPECT_FALSE(store_->room_to_write());
  store_.reset();
  gate->open();  // the threads end by themselves
}

TEST_F(PrefixStoreTest, ATouchThatHangsStopsStoresUntilItAnswers) {
  static MovedClock clock;  // lanes that are left behind read it
  const auto gate = std::make_shared<Gate>();
  std::atomic<bool> hangs = false;
  options_.breaker.first_pause = std::chrono::hours(1);  // no trial: the answer itself counts
  options_.breaker.longest_pause = std::chrono::hours(1);
  const auto memory =
      std::make_shared<MemoryRecords>([&, gate](std::string_view call) -> std::optional<Status> {
        if (call == "touch") {
          hangs = true;
          gate->pass();
        }
        return std::nullopt;
      });
  store_ = std::make_unique<PrefixStore>(options_, memory, clock);
  const auto keys = prompt_keys(options_.shape, 2);
  store_->touch(std::vector<RecordUse>{{keys[0].name, 2}});
  wait_until([&] { return hangs.load(); });
  EXPECT_FALSE(store_->stats().stores_stopped);
  clock.advance(options_.store_limit + milliseconds(1));
  EXPECT_TRUE(store_->stats().stores_stopped);
  EXPECT_FALSE(store_->room_to_write());
  std::vector<PrefixStore::Result> results;
  store_->poll(results);                                                        // notices it
  store_->touch(std::vector<RecordUse>{{keys[0].name, 3}, {keys[1].name, 3}});  // forgotten
  gate->open();
  wait_until([&] { return !store_->stats().stores_stopped; });
  write({keys[1]});
  wait_until([&] { return store_->stats().stored_blocks == 1; });
  EXPECT_EQ(memory->num_touched(), 1U);
}

TEST_F(PrefixStoreTest, TouchesThatWaitAreMergedAndBounded) {
  const auto gate = std::make_shared<Gate>();
  std::atomic<int> num_begun = 0;
  const auto memory =
      std::make_shared<MemoryRecords>([&, gate](std::string_view call) -> std::optional<Status> {
        if (call == "touch") {
          ++num_begun;
          gate->pass();
        }
        return std::nullopt;
      });
  start(memory);
  const auto uses_of = [](std::size_t count) {
    std::vector<RecordUse> uses(count);
    for (std::size_t i = 0; i < count; ++i) {
      uses[i].name.digest[0] = static_cast<std::byte>(i & 0xFF);
      uses[i].name.digest[1] = static_cast<std::byte>(i >> 8);
    }
    return uses;
  };
  store_->touch(uses_of(1));
  wait_until([&] { return num_begun == 1; });
  for (int i = 0; i < 100; ++i) {
    store_->touch(uses_of(200));
  }
  store_->touch(uses_of(PrefixStore::kMaxTouches + 100));
  gate->open();
  store_.reset();
  EXPECT_EQ(memory->num_touched(), 1 + PrefixStore::kMaxTouches);
}

TEST_F(PrefixStoreTest, StopsAfterFailuresAndGoesOnWhenItWorksAgain) {
  std::atomic<bool> works = false;
  start(std::make_shared<MemoryRecords>([&](std::string_view call) -> std::optional<Status> {
    if (call == "find" && !works) {
      return Status(StatusCode::kIoError, "broken");
    }
    return std::nullopt;
  }));
  const auto keys = prompt_keys(options_.shape, 1);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(wait_for(store_->find(names(keys))).num_present, 0U);
  }
  EXPECT_TRUE(store_->stats().loads_stopped);
  EXPECT_EQ(store_->stats().load_errors, 3);
  works = true;
  std::optional<PrefixStore::Ticket> trial;
  wait_until([&] { return (trial = store_->find(names(keys))).has_value(); });
  wait_for(trial);
  EXPECT_FALSE(store_->stats().loads_stopped);
}

TEST_F(PrefixStoreTest, AMediumThatCannotBeReachedIsSaidBeforeAnythingIsAsked) {
  std::vector<std::string> lines;
  std::mutex lines_mutex;
  options_.breaker.first_pause = std::chrono::hours(1);
  options_.breaker.longest_pause = std::chrono::hours(1);
  options_.log = [&](std::string_view line) {
    const std::lock_guard lock(lines_mutex);
    lines.emplace_back(line);
  };
  start(std::make_shared<MemoryRecords>([](std::string_view call) -> std::optional<Status> {
    if (call == "prepare") {
      return Status(StatusCode::kUnavailable, "it refuses the database 999");
    }
    return std::nullopt;
  }));
  wait_until([&] {
    const std::lock_guard lock(lines_mutex);
    return !lines.empty();
  });
  EXPECT_TRUE(store_->stats().stores_stopped);
  store_.reset();  // before the lines
  EXPECT_THAT(lines, testing::ElementsAre(testing::HasSubstr(
                         "stores stop for a while: it refuses the database 999")));
}

TEST_F(PrefixStoreTest, AFullMediumStopsStoresAtOnceAndNotLoads) {
  options_.breaker.first_pause = std::chrono::hours(1);
  options_.breaker.longest_pause = std::chrono::hours(1);
  start(std::make_shared<MemoryRecords>([](std::string_view call) -> std::optional<Status> {
    if (call == "write") {
      return Status(StatusCode::kResourceExhausted, "full");
    }
    return std::nullopt;
  }));
  const auto keys = prompt_keys(options_.shape, 1);
  write(keys);
  wait_until([&] { return store_->stats().stores_stopped; });
  EXPECT_FALSE(store_->room_to_write());
  EXPECT_EQ(wait_for(store_->find(names(keys))).num_present, 0U);
}

TEST_F(PrefixStoreTest, WhatWaitsWhenStoresStopIsDropped) {
  options_.breaker.first_pause = std::chrono::hours(1);
  options_.breaker.longest_pause = std::chrono::hours(1);
  options_.store_staging_bytes = 1 << 20;
  const auto gate = std::make_shared<Gate>();
  std::atomic<int> num_calls = 0;
  start(std::make_shared<MemoryRecords>([&, gate](std::string_view call) -> std::optional<Status> {
    if (call != "write") {
      return std::nullopt;
    }
    ++num_calls;
    gate->pass();
    return Status(StatusCode::kResourceExhausted, "full");
  }));
  write(prompt_keys(options_.shape, 40));
  wait_until([&] { return num_calls > 0; });
  gate->open();
  wait_until([&] { return store_->stats().dropped_blocks == 40; });
  EXPECT_EQ(num_calls, 1);
  EXPECT_TRUE(store_->stats().stores_stopped);
  store_.reset();  // before the counter
}

TEST_F(PrefixStoreTest, StagingIsBoundedForLoadsAndStoresApart) {
  const auto gate = std::make_shared<Gate>();
  options_.load_staging_bytes = 0;  // the least there is
  options_.store_staging_bytes = 0;
  start(std::make_shared<MemoryRecords>([gate](std::string_view) -> std::optional<Status> {
    gate->pass();
    return std::nullopt;
  }));
  const auto keys = prompt_keys(options_.shape, 9);
  write({keys.begin(), keys.begin() + 4});
  EXPECT_FALSE(store_->room_to_write());
  std::vector<PrefixStore::Ticket> tickets;
  while (const auto ticket = store_->read(keys[tickets.size()])) {
    tickets.push_back(*ticket);
  }
  EXPECT_EQ(tickets.size(), 4U);
  store_->cancel(tickets[0]);
  EXPECT_TRUE(store_->read(keys[8]));
  gate->open();
  wait_until([&] { return store_->num_reads() == 0; });
  wait_until([&] { return store_->room_to_write().has_value(); });
}

TEST_F(PrefixStoreTest, WakesItsOwner) {
  start(std::make_shared<MemoryRecords>());
  std::mutex mutex;
  std::condition_variable woken;
  bool is_awake = false;
  store_->set_wake([&] {
    const std::lock_guard lock(mutex);
    is_awake = true;
    woken.notify_all();
  });
  ASSERT_TRUE(store_->find(names(prompt_keys(options_.shape, 1))));
  std::unique_lock lock(mutex);
  woken.wait(lock, [&] { return is_awake; });
  lock.unlock();
  store_->set_wake({});
}

}  // namespace prefix_store_test
}  // namespace karez::test
