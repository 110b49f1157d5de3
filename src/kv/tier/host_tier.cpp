#include "kv/tier/host_tier.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "kv/tier/copy_workers.h"
#include "kv/tier/home_space.h"

namespace karez {

namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kMaxBlockBytes = 64U << 20U;
constexpr int kMaxWorkers = 64;
constexpr int kMaxInFlight = 1 << 16;

struct Job {
  Transfer transfer;
  BlockChecksums checksums = {};
  TransferStatus status = TransferStatus::kOk;
};

std::size_t stride_of(std::size_t block_bytes) {
  return (block_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::optional<Status> check_options(const HostTierOptions& options) {
  const auto invalid = [](std::string_view what, std::int64_t seen, std::int64_t least,
                          std::int64_t most) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("the host tier's {} is {}, allowed are {} to {}", what, seen, least, most));
  };
  if (options.block_bytes < 1 || options.block_bytes > kMaxBlockBytes) {
    return invalid("block size in bytes", static_cast<std::int64_t>(options.block_bytes), 1,
                   static_cast<std::int64_t>(kMaxBlockBytes));
  }
  if (options.num_workers < 0 || options.num_workers > kMaxWorkers) {
    return invalid("number of worker threads", options.num_workers, 0, kMaxWorkers);
  }
  if (options.max_in_flight < 1 || options.max_in_flight > kMaxInFlight) {
    return invalid("number of transfers in flight", options.max_in_flight, 1, kMaxInFlight);
  }
  return std::nullopt;
}

}  // namespace

class HostTier::Impl {
 public:
  Impl(const HostTierOptions& options, Arena arena)
      : options_(options),
        stride_(stride_of(options.block_bytes)),
        arena_(std::move(arena)),
        home_(std::min<std::int64_t>(
            static_cast<std::int64_t>(arena_.bytes().size()) / extent_bytes(),
            ExtentId::kNoneValue - 1)) {
    if (options.num_workers > 0) {
      workers_.emplace(options.num_workers, [this](Job& job) { copy(job); });
    }
  }

  HomeSpace& home() { return home_; }
  const HostTierOptions& options() const { return options_; }

  std::size_t submit(std::span<const Transfer> transfers) {
    std::size_t num_taken = 0;
    batch_.clear();
    for (const Transfer& transfer : transfers) {
      if (in_flight_ == options_.max_in_flight) {
        break;
      }
      Job job;
      job.transfer = transfer;
      const TransferStatus status = home_.begin(transfer, job.checksums);
      ++in_flight_;
      ++num_taken;
      if (status != TransferStatus::kOk) {
        refused_.push_back({transfer, status});
      } else if (workers_) {
        batch_.push_back(job);
      } else {
        copy(job);
        finished_.push_back(job);
      }
    }
    if (!batch_.empty()) {
      workers_->submit(batch_);
    }
    return num_taken;
  }

  void poll(std::vector<TransferResult>& results) {
    if (workers_ && in_flight_ > 0) {
      workers_->take(finished_);
    }
    for (const Job& job : finished_) {
      home_.end(job.transfer, job.status, job.checksums);
      results.push_back({job.transfer, job.status});
    }
    results.insert(results.end(), refused_.begin(), refused_.end());
    in_flight_ -= static_cast<int>(finished_.size() + refused_.size());
    finished_.clear();
    refused_.clear();
  }

  void wait_until(Clock::TimePoint time) {
    if (workers_ && in_flight_ > 0 && refused_.empty()) {
      workers_->wait_until(time);
    }
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
  std::int64_t extent_bytes() const { return static_cast<std::int64_t>(stride_) * kExtentBlocks; }

  // On a worker, or in submit(): touches the job, its memory, its blocks, and nothing else.
  void copy(Job& job) const {
    const std::size_t bytes = options_.block_bytes;
    std::byte* home = arena_.bytes().data() +
                      job.transfer.extent.value * static_cast<std::size_t>(extent_bytes()) +
                      static_cast<std::size_t>(job.transfer.first_block) * stride_;
    for (std::size_t i = 0; i < static_cast<std::size_t>(job.transfer.num_blocks); ++i) {
      std::byte* memory = job.transfer.memory[i];
      if (job.transfer.direction == TransferDirection::kWrite) {
        job.checksums[i] = block_checksum(memory, bytes);
        std::memcpy(home + i * stride_, memory, bytes);
      } else {
        std::memcpy(memory, home + i * stride_, bytes);
        if (block_checksum(memory, bytes) != job.checksums[i]) {
          job.status = TransferStatus::kChecksumMismatch;
        }
      }
    }
  }

  HostTierOptions options_;
  std::size_t stride_;
  Arena arena_;
  HomeSpace home_;
  int in_flight_ = 0;
  std::vector<Job> batch_;
  std::vector<Job> finished_;
  std::vector<TransferResult> refused_;
  std::optional<CopyWorkers<Job>> workers_;  // last: its threads use the rest
};

Expected<std::unique_ptr<HostTier>> HostTier::create(const HostTierOptions& options) {
  if (std::optional<Status> problem = check_options(options)) {
    return fail(std::move(*problem));
  }
  const auto extent_bytes =
      static_cast<std::int64_t>(stride_of(options.block_bytes)) * kExtentBlocks;
  const std::int64_t num_extents = options.capacity_bytes / extent_bytes;
  if (num_extents < 1) {
    return fail(
        StatusCode::kInvalidArgument,
        fmt::format("the host tier's capacity is {} bytes, an extent of {} blocks of {} "
                    "bytes needs {}",
                    options.capacity_bytes, kExtentBlocks, options.block_bytes, extent_bytes));
  }
  Expected<Arena> arena = Arena::create(static_cast<std::size_t>(num_extents * extent_bytes));
  if (!arena) {
    return fail(arena.error());
  }
  return create(options, std::move(*arena));
}

Expected<std::unique_ptr<HostTier>> HostTier::create(const HostTierOptions& options, Arena arena) {
  if (std::optional<Status> problem = check_options(options)) {
    return fail(std::move(*problem));
  }
  if (arena.bytes().size() < stride_of(options.block_bytes) * kExtentBlocks) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("the host tier's arena has {} bytes, an extent of {} blocks of {} "
                            "bytes does not fit",
                            arena.bytes().size(), kExtentBlocks, options.block_bytes));
  }
  try {
    return std::unique_ptr<HostTier>(
        new HostTier(std::make_unique<Impl>(options, std::move(arena))));
  } catch (const std::system_error& error) {
    return fail(StatusCode::kResourceExhausted,
                fmt::format("the host tier could not start {} worker threads: {}",
                            options.num_workers, error.what()));
  }
}

HostTier::HostTier(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HostTier::~HostTier() = default;

std::optional<ExtentId> HostTier::allocate_extent() { return impl_->home().allocate(); }
void HostTier::free_extent(ExtentId extent) { impl_->home().free(extent); }
std::size_t HostTier::submit(std::span<const Transfer> transfers) {
  return impl_->submit(transfers);
}
void HostTier::poll(std::vector<TransferResult>& results) { impl_->poll(results); }
void HostTier::wait_until(Clock::TimePoint time) { impl_->wait_until(time); }
std::size_t HostTier::block_bytes() const { return impl_->options().block_bytes; }
TierCapacity HostTier::capacity() const { return impl_->capacity(); }
std::string HostTier::describe() const {
  return fmt::format("host memory: {}, {} worker threads",
                     format_bytes(impl_->capacity().capacity_bytes()),
                     impl_->options().num_workers);
}

}  // namespace karez
