#include "kv/tier/disk_tier.h"

#include <fmt/format.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/arena.h"
#include "base/bytes.h"
#include "base/check.h"
#include "kv/tier/home_space.h"
#include "kv/tier/io_ring.h"
#include "kv/tier/scratch_file.h"

namespace karez {

namespace {

constexpr std::size_t kMaxBlockBytes = 64U << 20U;
constexpr int kMaxInFlight = 4096;
constexpr unsigned kResultsAtOnce = 64;

std::size_t round_up(std::size_t bytes, std::size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

Status invalid(std::string_view what, std::int64_t seen, std::int64_t least, std::int64_t most) {
  return {StatusCode::kInvalidArgument,
          fmt::format("the disk tier's {} is {}, allowed are {} to {}", what, seen, least, most)};
}

// `moved` is what the kernel says: bytes, or an error number below 0.
TransferStatus status_of(std::int64_t moved, std::size_t wanted_bytes) {
  if (moved >= 0) {
    return static_cast<std::size_t>(moved) == wanted_bytes ? TransferStatus::kOk
                                                           : TransferStatus::kShort;
  }
  return moved == -ENOSPC || moved == -EDQUOT || moved == -EFBIG ? TransferStatus::kNoSpace
                                                                 : TransferStatus::kIoError;
}

}  // namespace

class DiskTier::Impl {
 public:
  Impl(const DiskTierOptions& options, ScratchFile file, IoRing ring, std::size_t stride,
       std::int64_t num_extents, Arena staging)
      : options_(options),
        stride_(stride),
        file_(std::move(file)),
        ring_(std::move(ring)),
        staging_(std::move(staging)),
        home_(num_extents),
        flights_(static_cast<std::size_t>(options.max_in_flight)),
        idle_flights_(flights_.size()) {
    std::iota(idle_flights_.rbegin(), idle_flights_.rend(), 0U);
  }

  ~Impl() {
    while (idle_flights_.size() < flights_.size()) {
      static_cast<void>(io_uring_submit_and_wait(ring_.get(), 1));
      collect();
    }
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  HomeSpace& home() { return home_; }
  const DiskTierOptions& options() const { return options_; }
  const ScratchFile& file() const { return file_; }
  std::int64_t num_staged() const { return num_staged_; }

  std::size_t submit(std::span<const Transfer> transfers) {
    std::size_t num_taken = 0;
    for (const Transfer& transfer : transfers) {
      if (in_flight_ == options_.max_in_flight) {
        break;
      }
      BlockChecksums checksums = {};
      const TransferStatus status = home_.begin(transfer, checksums);
      ++in_flight_;
      ++num_taken;
      if (status != TransferStatus::kOk) {
        finished_.push_back({transfer, status});
        continue;
      }
      const std::uint32_t index = idle_flights_.back();
      idle_flights_.pop_back();
      flights_[index].transfer = transfer;
      flights_[index].checksums = checksums;
      prepare(index);
    }
    push();
    return num_taken;
  }

  void poll(std::vector<TransferResult>& results) {
    push();
    collect();
    results.insert(results.end(), finished_.begin(), finished_.end());
    in_flight_ -= static_cast<int>(finished_.size());
    finished_.clear();
  }

  void wait_until(Clock::TimePoint time) {
    push();
    if (!finished_.empty() || in_flight_ == 0) {
      return;
    }
    const auto left = std::max(time - Clock::steady().now(), Clock::Duration::zero());
    const auto whole_seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
    __kernel_timespec timeout = {};
    timeout.tv_sec = whole_seconds.count();
    timeout.tv_nsec = std::chrono::nanoseconds(left - whole_seconds).count();
    io_uring_cqe* result = nullptr;
    static_cast<void>(io_uring_wait_cqe_timeout(ring_.get(), &result, &timeout));
  }

  TierCapacity capacity() const {
    return {.extent_bytes = extent_bytes(),
            .num_extents = home_.num_extents(),
            .free_extents = home_.free_extents(),
            .max_in_flight = options_.max_in_flight,
            .in_flight = in_flight_,
            .metadata_bytes = home_.metadata_bytes()};
  }

 private:
  struct Flight {
    Transfer transfer;
    BlockChecksums checksums = {};
    bool is_staged = false;
    std::size_t num_bytes = 0;
    std::array<iovec, kExtentBlocks> parts = {};
  };

  std::int64_t extent_bytes() const { return static_cast<std::int64_t>(stride_) * kExtentBlocks; }

  std::byte* staging_of(std::size_t index) const {
    return staging_.bytes().data() + index * static_cast<std::size_t>(extent_bytes());
  }

  void prepare(std::uint32_t index) {
    Flight& flight = flights_[index];
    const Transfer& transfer = flight.transfer;
    const bool reads = transfer.direction == TransferDirection::kRead;
    const auto num_blocks = static_cast<std::size_t>(transfer.num_blocks);
    flight.num_bytes = num_blocks * stride_;
    flight.is_staged = stride_ != options_.block_bytes;
    for (std::size_t i = 0; i < num_blocks; ++i) {
      const auto address = reinterpret_cast<std::uintptr_t>(transfer.memory[i]);
      flight.is_staged = flight.is_staged || address % file_.memory_alignment() != 0;
    }
    unsigned num_parts = 1;
    if (flight.is_staged) {
      ++num_staged_;
      flight.parts[0] = {staging_of(index), flight.num_bytes};
    } else {
      num_parts = gather(transfer, flight.parts);
    }
    if (!reads) {
      for (std::size_t i = 0; i < num_blocks; ++i) {
        flight.checksums[i] = block_checksum(transfer.memory[i], options_.block_bytes);
        if (flight.is_staged) {
          std::memcpy(staging_of(index) + i * stride_, transfer.memory[i], options_.block_bytes);
        }
      }
    }
    io_uring_sqe* entry = io_uring_get_sqe(ring_.get());
    KAREZ_CHECK(entry != nullptr, "the ring has an entry for each flight");
    const std::uint64_t offset =
        transfer.extent.value * static_cast<std::uint64_t>(extent_bytes()) +
        static_cast<std::uint64_t>(transfer.first_block) * stride_;
    if (reads) {
      io_uring_prep_readv(entry, file_.descriptor(), flight.parts.data(), num_parts, offset);
    } else {
      io_uring_prep_writev(entry, file_.descriptor(), flight.parts.data(), num_parts, offset);
    }
    io_uring_sqe_set_data64(entry, index);
  }

  // Neighbours in memory become one part.
  unsigned gather(const Transfer& transfer, std::array<iovec, kExtentBlocks>& parts) const {
    std::size_t num_parts = 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(transfer.num_blocks); ++i) {
      if (i > 0 && transfer.memory[i] == transfer.memory[i - 1] + stride_) {
        parts[num_parts - 1].iov_len += stride_;
      } else {
        parts[num_parts++] = {transfer.memory[i], stride_};
      }
    }
    return static_cast<unsigned>(num_parts);
  }

  // What the kernel does not take now stays in the ring for the next call.
  void push() {
    if (io_uring_sq_ready(ring_.get()) > 0) {
      static_cast<void>(io_uring_submit(ring_.get()));
    }
  }

  void collect() {
    std::array<io_uring_cqe*, kResultsAtOnce> entries = {};
    while (true) {
      const unsigned count = io_uring_peek_batch_cqe(ring_.get(), entries.data(), kResultsAtOnce);
      for (unsigned i = 0; i < count; ++i) {
        finish(static_cast<std::uint32_t>(io_uring_cqe_get_data64(entries[i])), entries[i]->res);
      }
      io_uring_cq_advance(ring_.get(), count);
      if (count < kResultsAtOnce) {
        return;
      }
    }
  }

  void finish(std::uint32_t index, int moved) {
    const Flight& flight = flights_[index];
    const Transfer& transfer = flight.transfer;
    TransferResult result;
    result.transfer = transfer;
    result.status = status_of(moved, flight.num_bytes);
    result.error_number = moved < 0 ? -moved : 0;
    if (result.ok() && transfer.direction == TransferDirection::kRead) {
      for (std::size_t i = 0; i < static_cast<std::size_t>(transfer.num_blocks); ++i) {
        if (flight.is_staged) {
          std::memcpy(transfer.memory[i], staging_of(index) + i * stride_, options_.block_bytes);
        }
        if (block_checksum(transfer.memory[i], options_.block_bytes) != flight.checksums[i]) {
          result.status = TransferStatus::kChecksumMismatch;
        }
      }
    }
    home_.end(transfer, result.status, flight.checksums);
    finished_.push_back(result);
    idle_flights_.push_back(index);
  }

  DiskTierOptions options_;
  std::size_t stride_;  // from a block to the next in the file
  ScratchFile file_;
  IoRing ring_;
  Arena staging_;  // an extent for each flight; resident where it was used
  HomeSpace home_;
  int in_flight_ = 0;
  std::vector<Flight> flights_;  // index: the user data of ring entries
  std::vector<std::uint32_t> idle_flights_;
  std::vector<TransferResult> finished_;
  std::int64_t num_staged_ = 0;
};

Expected<std::unique_ptr<DiskTier>> DiskTier::create(const DiskTierOptions& options) {
  if (options.block_bytes < 1 || options.block_bytes > kMaxBlockBytes) {
    return fail(invalid("block size in bytes", static_cast<std::int64_t>(options.block_bytes), 1,
                        static_cast<std::int64_t>(kMaxBlockBytes)));
  }
  if (options.max_in_flight < 1 || options.max_in_flight > kMaxInFlight) {
    return fail(invalid("number of transfers in flight", options.max_in_flight, 1, kMaxInFlight));
  }
  Expected<IoRing> ring = make_io_ring(options.max_in_flight);
  if (!ring) {
    return fail(ring.error());
  }
  Expected<ScratchFile> file =
      ScratchFile::create(options.directory, std::max<std::int64_t>(options.capacity_bytes, 0));
  if (!file) {
    return fail(file.error());
  }
  const std::size_t stride = round_up(options.block_bytes, file->offset_alignment());
  const auto extent_bytes = static_cast<std::int64_t>(stride) * kExtentBlocks;
  const std::int64_t num_extents =
      std::min<std::int64_t>(options.capacity_bytes / extent_bytes, ExtentId::kNoneValue - 1);
  if (num_extents < 1) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("the disk tier's capacity is {} bytes, an extent of {} blocks of {} "
                            "bytes needs {} on {}",
                            options.capacity_bytes, kExtentBlocks, options.block_bytes,
                            extent_bytes, options.directory));
  }
  Expected<Arena> staging =
      Arena::create(static_cast<std::size_t>(extent_bytes * options.max_in_flight));
  if (!staging) {
    return fail(staging.error());
  }
  return std::unique_ptr<DiskTier>(new DiskTier(std::make_unique<Impl>(
      options, std::move(*file), std::move(*ring), stride, num_extents, std::move(*staging))));
}

DiskTier::DiskTier(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DiskTier::~DiskTier() = default;

std::optional<ExtentId> DiskTier::allocate_extent() { return impl_->home().allocate(); }
void DiskTier::free_extent(ExtentId extent) { impl_->home().free(extent); }
std::size_t DiskTier::submit(std::span<const Transfer> transfers) {
  return impl_->submit(transfers);
}
void DiskTier::poll(std::vector<TransferResult>& results) { impl_->poll(results); }
void DiskTier::wait_until(Clock::TimePoint time) { impl_->wait_until(time); }
std::size_t DiskTier::block_bytes() const { return impl_->options().block_bytes; }
TierCapacity DiskTier::capacity() const { return impl_->capacity(); }
bool DiskTier::is_direct() const { return impl_->file().is_direct(); }
std::int64_t DiskTier::num_staged() const { return impl_->num_staged(); }
std::string DiskTier::describe() const {
  const ScratchFile& file = impl_->file();
  return fmt::format("disk {}: {}, io_uring, {}", impl_->options().directory,
                     format_bytes(impl_->capacity().capacity_bytes()),
                     file.is_direct()
                         ? fmt::format("O_DIRECT ({}-byte sectors)", file.offset_alignment())
                         : "through the page cache (no O_DIRECT there)");
}

}  // namespace karez
