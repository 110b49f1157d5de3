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

void NetworkReader::read(const RemoteRead& read, Clock::TimePoint deadline) {
  waiting_.push_back({read, deadline, answers_, {}, {}, false, false});
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
      ++answers_;
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
    if (status == UCS_OK) {
      ++answers_;
      is_silent_ = false;
    }
    ucp_request_free(request);
    return true;
  });
}

void NetworkReader::poll(Clock::TimePoint now, PeerPoolStats& stats,
                         std::vector<RemoteReadResult>& results) {
  // Whatever is started may have ended at once; then nothing would wake us for the next.
  do {
    while (!waiting_.empty() && started_.size() < kGetsAtATime) {
      started_.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
      start(started_.back());
    }
    for (Read& read : started_) {
      take_ended_requests(read);
      if (read.requests.empty() && !read.is_reported) {
        const TransferStatus status = read.has_failed ? TransferStatus::kIoError : verify(read);
        if (status == TransferStatus::kOk) {
          stats.blocks_read += read.read.num_blocks;
          stats.bytes_received += static_cast<std::int64_t>(read.buffer.size());
        }
        report(read, status, results);
      } else if (now >= read.deadline) {
        report_late(read, results);
      }
    }
    std::erase_if(started_,
                  [](const Read& read) { return read.is_reported && read.requests.empty(); });
    // In the order of their deadlines.
    while (!waiting_.empty() && now >= waiting_.front().deadline) {
      report_late(waiting_.front(), results);
      waiting_.pop_front();
    }
  } while (!waiting_.empty() && started_.size() < kGetsAtATime);
  if (is_silent_) {
    fail_all(TransferStatus::kDeadlinePassed, results);
  }
}

void NetworkReader::report_late(Read& late, std::vector<RemoteReadResult>& results) {
  if (!late.is_reported) {
    is_silent_ = is_silent_ || late.answers_before == answers_;
    report(late, TransferStatus::kDeadlinePassed, results);
  }
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

Clock::TimePoint NetworkReader::next_deadline() const {
  Clock::TimePoint next = Clock::TimePoint::max();
  for (const Read& read : started_) {
    next = read.is_reported ? next : std::min(next, read.deadline);
  }
  return waiting_.empty() ? next : std::min(next, waiting_.front().deadline);
}

}  // namespace karez
