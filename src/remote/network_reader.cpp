#include "remote/network_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kv/tier/home_space.h"

namespace karez {

namespace {
constexpr std::size_t kGetsAtATime = 128;
}

NetworkReader::~NetworkReader() {
  peer_.reset();
  for (Read& read : started_) {
    take_ended_requests(read);
    if (!read.requests.empty()) {
      // UCX may write there as long as it lives.
      static_cast<void>(new std::vector<std::byte>(std::move(read.buffer)));
    }
  }
}

void NetworkReader::read(const RemoteRead& read) {
  waiting_.push_back({read, {}, {}, false, false});
}

bool NetworkReader::is_asking() const {
  return std::any_of(started_.begin(), started_.end(),
                     [](const Read& read) { return !read.requests.empty(); });
}

void NetworkReader::start(Read& started) {
  const auto num_blocks = static_cast<std::size_t>(started.read.num_blocks);
  started.buffer.resize(num_blocks * block_bytes_);
  std::size_t run = 0;
  for (std::size_t first = 0; first < num_blocks && !started.has_failed; first += run) {
    const std::uint64_t offset = started.read.blocks[first].offset;
    run = 1;
    while (first + run < num_blocks && !started.read.blocks[first].is_absent() &&
           started.read.blocks[first + run].offset == offset + run * block_bytes_) {
      ++run;
    }
    if (!peer_->memory().contains(offset, run * block_bytes_)) {
      started.has_failed = true;
      break;
    }
    void* request = peer_->memory().get(offset, run * block_bytes_,
                                        started.buffer.data() + first * block_bytes_);
    if (UCS_PTR_IS_ERR(request)) {
      started.has_failed = true;
    } else if (request != nullptr) {
      started.requests.push_back(request);
    } else {
      has_heard_ = true;
    }
  }
}

void NetworkReader::take_ended_requests(Read& read) {
  std::erase_if(read.requests, [&](void* request) {
    const ucs_status_t status = ucp_request_check_status(request);
    if (status == UCS_INPROGRESS) {
      return false;
    }
    read.has_failed = read.has_failed || status != UCS_OK;
    has_heard_ = has_heard_ || status == UCS_OK;
    ucp_request_free(request);
    return true;
  });
}

void NetworkReader::poll(Clock::TimePoint now, PeerPoolStats& stats,
                         std::vector<RemoteReadResult>& results) {
  const Clock::Duration passed = std::min(now - std::exchange(last_poll_, now), kPollStep);
  silence_ = is_asking() ? silence_ + passed : Clock::Duration::zero();
  has_heard_ = false;
  // Whatever is started may have ended at once; then nothing would wake us for the next.
  do {
    while (!waiting_.empty() && started_.size() < kGetsAtATime) {
      started_.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
      start(started_.back());
    }
    for (Read& read : started_) {
      take_ended_requests(read);
      // One that has failed with its connection may go another way.
      if (read.requests.empty() && !read.is_reported && !(read.has_failed && peer_->is_broken())) {
        const TransferStatus status = read.has_failed ? TransferStatus::kIoError : verify(read);
        if (status == TransferStatus::kOk) {
          stats.blocks_read += read.read.num_blocks;
          stats.bytes_received += static_cast<std::int64_t>(read.buffer.size());
        }
        report(read, status, results);
      }
    }
    std::erase_if(started_,
                  [](const Read& read) { return read.is_reported && read.requests.empty(); });
  } while (!waiting_.empty() && started_.size() < kGetsAtATime);
  silence_ = has_heard_ ? Clock::Duration::zero() : silence_;
}

TransferStatus NetworkReader::verify(const Read& ended) const {
  const auto num_blocks = static_cast<std::size_t>(ended.read.num_blocks);
  for (std::size_t i = 0; i < num_blocks; ++i) {
    const std::byte* bytes = ended.buffer.data() + i * block_bytes_;
    if (block_checksum(bytes, block_bytes_) != ended.read.blocks[i].checksum) {
      return TransferStatus::kChecksumMismatch;
    }
  }
  for (std::size_t i = 0; i < num_blocks; ++i) {
    std::memcpy(ended.read.memory[i], ended.buffer.data() + i * block_bytes_, block_bytes_);
  }
  return TransferStatus::kOk;
}

void NetworkReader::report(Read& ended, TransferStatus status,
                           std::vector<RemoteReadResult>& results) {
  if (!std::exchange(ended.is_reported, true)) {
    results.push_back({ended.read.ticket, ended.read.reader, status});
  }
}

void NetworkReader::fail_all(TransferStatus status, std::vector<RemoteReadResult>& results) {
  for (std::deque<Read>* reads : {&started_, &waiting_}) {
    for (Read& read : *reads) {
      report(read, status, results);
    }
  }
  waiting_.clear();
}

void NetworkReader::take_back(std::vector<RemoteRead>& reads) {
  for (std::deque<Read>* held : {&started_, &waiting_}) {
    for (Read& read : *held) {
      if (!std::exchange(read.is_reported, true)) {
        reads.push_back(read.read);
      }
    }
  }
  waiting_.clear();
}

void NetworkReader::fail_reads_of(LeaseId lease, TransferStatus status,
                                  std::vector<RemoteReadResult>& results) {
  for (std::deque<Read>* reads : {&started_, &waiting_}) {
    for (Read& read : *reads) {
      if (read.read.lease == lease) {
        report(read, status, results);
      }
    }
  }
  std::erase_if(waiting_, [](const Read& read) { return read.is_reported; });
}

Clock::TimePoint NetworkReader::next_poll() const {
  return is_asking() ? last_poll_ + std::min(kPollStep, patience_ - silence_)
                     : Clock::TimePoint::max();
}

}  // namespace karez
