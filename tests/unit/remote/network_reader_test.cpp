// One-sided reads between two ends in one process. What is exposed is answered only while its end
// moves on, so that a test decides when a peer is silent.
#include "remote/network_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <utility>

#include "kv/tier/home_space.h"
#include "support/remote/two_nodes.h"

namespace karez::test {
namespace network_reader_test {

using std::chrono::seconds;
using testing::IsEmpty;
using testing::SizeIs;

template <typename T>
T value_of(Expected<T> expected) {
  EXPECT_TRUE(expected.has_value()) << expected.error().to_string();
  return std::move(*expected);
}

constexpr std::size_t kBlockBytes = 4096;
constexpr std::size_t kBlocks = 8;
constexpr auto kTimeLimit = seconds(5);

class NetworkReaderTest : public testing::Test {
 protected:
  NetworkReaderTest() : exposed_(kBlocks * kBlockBytes), read_(kBlocks * kBlockBytes) {
    for (std::size_t i = 0; i < exposed_.size(); ++i) {
      exposed_[i] = static_cast<std::byte>(i * 7 / 3);
    }
    producer_ = value_of(UcxNetwork::create("tcp"));
    EXPECT_FALSE(producer_->expose(exposed_).has_value());
    consumer_ = value_of(UcxNetwork::create("tcp"));
    reader_.emplace(value_of(consumer_->connect(producer_->address(), producer_->key(),
                                                reinterpret_cast<std::uintptr_t>(exposed_.data()),
                                                exposed_.size())),
                    kBlockBytes, kTimeLimit, now_);
  }

  RemoteRead read_of(std::size_t block) {
    RemoteRead read;
    read.ticket = block;
    read.num_blocks = 1;
    const std::size_t at = block * kBlockBytes;
    read.blocks[0] = {.offset = at, .checksum = block_checksum(&exposed_[at], kBlockBytes)};
    read.memory[0] = &read_[at];
    return read;
  }

  void poll() {
    consumer_->progress();
    reader_->poll(now_, stats_, results_);
  }
  // Time stands still.
  bool poll_until(bool producer_answers, const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) {
        return false;
      }
      if (producer_answers) {
        producer_->progress();
      }
      poll();
    }
    return true;
  }

  std::vector<std::byte> exposed_;
  std::vector<std::byte> read_;
  Clock::TimePoint now_ = Clock::TimePoint(std::chrono::hours(1));
  PeerPoolStats stats_;
  std::vector<RemoteReadResult> results_;
  std::unique_ptr<UcxNetwork> producer_;
  std::unique_ptr<UcxNetwork> consumer_;
  std::optional<NetworkReader> reader_;
};

TEST_F(NetworkReaderTest, BlocksComeFromAPeerThatAnswers) {
  for (std::size_t block = 0; block < kBlocks; ++block) {
    reader_->read(read_of(block));
  }
  ASSERT_TRUE(poll_until(true, [&] { return results_.size() == kBlocks; }));
  for (const RemoteReadResult& result : results_) {
    EXPECT_EQ(result.status, TransferStatus::kOk) << result.ticket;
  }
  EXPECT_EQ(read_, exposed_);
  EXPECT_EQ(stats_.blocks_read, static_cast<std::int64_t>(kBlocks));
  EXPECT_FALSE(reader_->is_lost());
  EXPECT_EQ(reader_->next_poll(), Clock::TimePoint::max());
}

TEST_F(NetworkReaderTest, APeerThatIsSilentForTooLongIsLostAndItsReadsAreTakenBack) {
  reader_->read(read_of(3));
  poll();
  for (int second = 1; second < 5; ++second) {
    now_ += seconds(1);
    poll();
    EXPECT_FALSE(reader_->is_lost()) << second;
    EXPECT_EQ(reader_->next_poll(), now_ + seconds(1));
  }
  now_ += seconds(1);
  poll();
  EXPECT_TRUE(reader_->is_lost());
  EXPECT_THAT(results_, IsEmpty());
  std::vector<RemoteRead> unanswered;
  reader_->take_back(unanswered);
  ASSERT_THAT(unanswered, SizeIs(1));
  EXPECT_EQ(unanswered[0].ticket, 3U);
  // Whatever comes after that is written nowhere.
  for (int i = 0; i < 100; ++i) {
    producer_->progress();
    poll();
  }
  EXPECT_THAT(results_, IsEmpty());
  EXPECT_THAT(read_, testing::Each(std::byte{0}));
}

TEST_F(NetworkReaderTest, ALongStepOfOurOwnIsNotThePeersSilence) {
  reader_->read(read_of(0));
  poll();
  now_ += seconds(100);
  poll();
  EXPECT_FALSE(reader_->is_lost());
  ASSERT_TRUE(poll_until(true, [&] { return !results_.empty(); }));
  EXPECT_EQ(results_[0].status, TransferStatus::kOk);
}

TEST_F(NetworkReaderTest, SilenceIsCountedSinceTheLastAnswer) {
  for (std::size_t block = 0; block < kBlocks; ++block) {
    results_.clear();
    reader_->read(read_of(block));
    poll();
    for (int second = 1; second < 5; ++second) {
      now_ += seconds(1);
      poll();
    }
    ASSERT_TRUE(poll_until(true, [&] { return !results_.empty(); }));
    EXPECT_EQ(results_[0].status, TransferStatus::kOk);
  }
  now_ += seconds(1000);  // nobody asks
  poll();
  EXPECT_FALSE(reader_->is_lost());
}

TEST_F(NetworkReaderTest, AConnectionThatFailsIsLostAndItsReadsAreTakenBack) {
  reader_->read(read_of(0));
  ASSERT_TRUE(poll_until(true, [&] { return !results_.empty(); }));
  producer_.reset();
  results_.clear();
  reader_->read(read_of(1));
  ASSERT_TRUE(poll_until(false, [&] { return reader_->is_lost(); }));
  std::vector<RemoteRead> unanswered;
  reader_->take_back(unanswered);
  EXPECT_THAT(results_, IsEmpty());
  ASSERT_THAT(unanswered, SizeIs(1));
  EXPECT_EQ(unanswered[0].ticket, 1U);
}

}  // namespace network_reader_test
}  // namespace karez::test
