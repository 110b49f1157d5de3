// What the storage below the fast tier moves, and how near that is to the medium.
//
//   host_read/BLOCKS/T      random transfers of BLOCKS x 4 KiB out of 1 GiB of host memory,
//                           T workers
//   host_write/BLOCKS/T     the same, into it
//   memcpy/BLOCKS           plain copies of the same blocks in this thread: the ceiling of both
//   queue_host_read/BLOCKS  host_read with one worker through a TransferQueue
//   disk_read/BLOCKS        random reads of BLOCKS x 4 KiB from a file of 2 GiB through DiskTier
//   plain_read/BLOCKS       the same requests through nothing but io_uring and O_DIRECT
//   disk_write/BLOCKS       writes of BLOCKS x 4 KiB through DiskTier, to extents written before
//
// GiB/s and transfers/s. --directory=DIR says where the file goes (default: the system's temporary
// one); compare disk_read with plain_read of the same run only.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <liburing.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>

#include "base/arena.h"
#include "kv/tier/disk_tier.h"
#include "kv/tier/host_tier.h"
#include "kv/tier/scratch_file.h"
#include "kv/tier/transfer_queue.h"

namespace karez {
namespace {

constexpr std::size_t kBlockBytes = 4096;
constexpr std::int64_t kHostBytes = std::int64_t{1} << 30U;
constexpr std::int64_t kDiskBytes = std::int64_t{2} << 30U;
constexpr int kInFlight = 128;
constexpr int kPerIteration = 4096;

std::string disk_directory;

template <class T>
T value_or_exit(Expected<T> expected) {
  if (!expected) {
    fmt::print(stderr, "{}\n", expected.error().to_string());
    std::exit(1);
  }
  return std::move(*expected);
}

// Random blocks of all extents of a tier, and fast memory of 256 MiB in random order.
class Requests {
 public:
  Requests(std::int64_t num_extents, int num_blocks)
      : fast_(value_or_exit(Arena::create(std::size_t{256} << 20U))),
        num_extents_(num_extents),
        num_blocks_(num_blocks) {
    std::memset(fast_.bytes().data(), 1, fast_.bytes().size());
  }
  Transfer next(TransferDirection direction) {
    Transfer transfer;
    transfer.id = ++last_id_;
    transfer.direction = direction;
    transfer.extent = ExtentId(static_cast<std::uint32_t>(pick(num_extents_)));
    transfer.first_block = static_cast<int>(pick(kExtentBlocks / num_blocks_)) * num_blocks_;
    transfer.num_blocks = num_blocks_;
    for (int i = 0; i < num_blocks_; ++i) {
      transfer.memory[static_cast<std::size_t>(i)] = slot();
    }
    return transfer;
  }
  std::byte* slot() {
    const auto num_slots = static_cast<std::int64_t>(fast_.bytes().size() / kBlockBytes);
    return fast_.bytes().data() + static_cast<std::size_t>(pick(num_slots)) * kBlockBytes;
  }
  std::int64_t pick(std::int64_t bound) {
    return std::uniform_int_distribution<std::int64_t>(0, bound - 1)(random_);
  }

 private:
  Arena fast_;
  std::int64_t num_extents_;
  int num_blocks_;
  std::mt19937_64 random_{7};
  std::uint64_t last_id_ = 0;
};

void report(benchmark::State& state, int num_blocks) {
  const double transfers = static_cast<double>(state.iterations()) * kPerIteration;
  const double bytes = transfers * num_blocks * static_cast<double>(kBlockBytes);
  state.counters["GiB/s"] = benchmark::Counter(bytes / (1U << 30U), benchmark::Counter::kIsRate);
  state.counters["transfers/s"] = benchmark::Counter(transfers, benchmark::Counter::kIsRate);
}

void allocate_and_fill(Tier& tier) {
  Requests requests(1, kExtentBlocks);
  std::vector<TransferResult> results;
  std::size_t num_written = 0;
  while (const std::optional<ExtentId> extent = tier.allocate_extent()) {
    Transfer transfer = requests.next(TransferDirection::kWrite);
    transfer.extent = *extent;
    while (tier.submit({&transfer, 1}) == 0) {
      tier.wait_until(Clock::steady().now() + std::chrono::seconds(1));
      tier.poll(results);
    }
    ++num_written;
  }
  while (results.size() < num_written) {
    tier.wait_until(Clock::steady().now() + std::chrono::seconds(1));
    tier.poll(results);
  }
  for (const TransferResult& result : results) {
    if (!result.ok()) {
      fmt::print(stderr, "{}: {}\n", tier.describe(), to_string(result.status));
      std::exit(1);
    }
  }
}

// Keeps the tier full. Two writes of one block at a time are conflicts: they are counted as failed.
void move_blocks(benchmark::State& state, Tier& tier, TransferDirection direction, int num_blocks) {
  Requests requests(tier.capacity().num_extents, num_blocks);
  std::vector<Transfer> batch;
  std::vector<TransferResult> results;
  std::int64_t num_failed = 0;
  for (auto _ : state) {
    int num_submitted = 0;
    int num_done = 0;
    while (num_done < kPerIteration) {
      const TierCapacity capacity = tier.capacity();
      batch.clear();
      for (int i = std::min(std::min(kInFlight, capacity.max_in_flight) - capacity.in_flight,
                            kPerIteration - num_submitted);
           i > 0; --i) {
        batch.push_back(requests.next(direction));
      }
      num_submitted += static_cast<int>(tier.submit(batch));
      tier.wait_until(Clock::steady().now() + std::chrono::seconds(1));
      results.clear();
      tier.poll(results);
      num_done += static_cast<int>(results.size());
      for (const TransferResult& result : results) {
        num_failed += result.ok() ? 0 : 1;
      }
    }
  }
  report(state, num_blocks);
  state.counters["failed"] = static_cast<double>(num_failed);
}

std::unique_ptr<Tier> make_host(int num_workers) {
  HostTierOptions options;
  options.block_bytes = kBlockBytes;
  options.capacity_bytes = kHostBytes;
  options.num_workers = num_workers;
  std::unique_ptr<Tier> tier = value_or_exit(HostTier::create(options));
  allocate_and_fill(*tier);
  return tier;
}

void host(benchmark::State& state, TransferDirection direction) {
  const std::unique_ptr<Tier> tier = make_host(static_cast<int>(state.range(1)));
  move_blocks(state, *tier, direction, static_cast<int>(state.range(0)));
}

void plain_memcpy(benchmark::State& state) {
  const int num_blocks = static_cast<int>(state.range(0));
  const Arena home = value_or_exit(Arena::create(static_cast<std::size_t>(kHostBytes)));
  std::memset(home.bytes().data(), 1, home.bytes().size());
  const std::int64_t num_extents = kHostBytes / static_cast<std::int64_t>(kBlockBytes) / 4;
  Requests requests(num_extents, num_blocks);
  for (auto _ : state) {
    for (int i = 0; i < kPerIteration; ++i) {
      const Transfer transfer = requests.next(TransferDirection::kRead);
      const std::size_t at = (transfer.extent.value * std::size_t{4} +
                              static_cast<std::size_t>(transfer.first_block)) *
                             kBlockBytes;
      for (std::size_t b = 0; b < static_cast<std::size_t>(num_blocks); ++b) {
        std::memcpy(transfer.memory[b], home.bytes().data() + at + b * kBlockBytes, kBlockBytes);
      }
    }
  }
  report(state, num_blocks);
}

void queue_host_read(benchmark::State& state) {
  const int num_blocks = static_cast<int>(state.range(0));
  std::unique_ptr<Tier> tier = make_host(1);
  Requests requests(tier->capacity().num_extents, num_blocks);
  TransferQueue queue(std::move(tier), {});
  std::vector<TransferId> ids;
  std::vector<TransferResult> results;
  for (auto _ : state) {
    for (int done = 0; done < kPerIteration; done += kInFlight) {
      ids.clear();
      for (int i = 0; i < kInFlight; ++i) {
        ids.push_back(
            queue.submit(requests.next(TransferDirection::kRead), TransferPriority::kDemand)
                .value_or(0));
      }
      if (!queue.wait_for(ids, Clock::steady().now() + std::chrono::seconds(10))) {
        std::abort();
      }
      results.clear();
      queue.poll(results);
    }
  }
  report(state, num_blocks);
}

// One for all disk benchmarks: filling it takes longer than the rest. Dropped by main().
std::unique_ptr<Tier> disk_tier;

void disk(benchmark::State& state, TransferDirection direction) {
  if (!disk_tier) {
    DiskTierOptions options;
    options.directory = disk_directory;
    options.block_bytes = kBlockBytes;
    options.capacity_bytes = kDiskBytes;
    options.max_in_flight = kInFlight;
    disk_tier = value_or_exit(DiskTier::create(options));
    allocate_and_fill(*disk_tier);
    fmt::print(stderr, "{}\n", disk_tier->describe());
  }
  move_blocks(state, *disk_tier, direction, static_cast<int>(state.range(0)));
}

void check(bool is_good, const char* what) {
  if (!is_good) {
    std::perror(what);
    std::exit(1);
  }
}

void plain_read(benchmark::State& state) {
  static const ScratchFile file = [] {
    ScratchFile made = value_or_exit(ScratchFile::create(disk_directory, kDiskBytes));
    const Arena piece = value_or_exit(Arena::create(std::size_t{64} << 20U));
    std::memset(piece.bytes().data(), 1, piece.bytes().size());
    for (std::int64_t at = 0; at < kDiskBytes; at += static_cast<std::int64_t>(64) << 20U) {
      check(pwrite(made.descriptor(), piece.bytes().data(), piece.bytes().size(), at) ==
                static_cast<ssize_t>(piece.bytes().size()),
            "pwrite");
    }
    return made;
  }();
  const int num_blocks = static_cast<int>(state.range(0));
  const auto num_bytes = static_cast<unsigned>(num_blocks * kBlockBytes);
  io_uring ring = {};
  check(io_uring_queue_init(kInFlight, &ring, 0) == 0, "io_uring_queue_init");
  const Arena buffers = value_or_exit(Arena::create(std::size_t{kInFlight} * num_bytes));
  Requests requests(1, 1);
  std::vector<std::uint64_t> idle(kInFlight);
  for (std::size_t i = 0; i < idle.size(); ++i) {
    idle[i] = i;
  }
  for (auto _ : state) {
    int num_submitted = 0;
    int num_done = 0;
    while (num_done < kPerIteration) {
      for (; !idle.empty() && num_submitted < kPerIteration; ++num_submitted) {
        io_uring_sqe* entry = io_uring_get_sqe(&ring);
        const auto at =
            static_cast<std::uint64_t>(requests.pick(kDiskBytes / num_bytes)) * num_bytes;
        io_uring_prep_read(entry, file.descriptor(),
                           buffers.bytes().data() + idle.back() * num_bytes, num_bytes, at);
        io_uring_sqe_set_data64(entry, idle.back());
        idle.pop_back();
      }
      check(io_uring_submit_and_wait(&ring, 1) >= 0, "io_uring_submit_and_wait");
      io_uring_cqe* result = nullptr;
      while (io_uring_peek_cqe(&ring, &result) == 0) {
        check(result->res == static_cast<int>(num_bytes), "read");
        idle.push_back(io_uring_cqe_get_data64(result));
        io_uring_cqe_seen(&ring, result);
        ++num_done;
      }
    }
  }
  io_uring_queue_exit(&ring);
  report(state, num_blocks);
}

void register_all() {
  using benchmark::RegisterBenchmark;
  const auto with = [](benchmark::internal::Benchmark* made) {
    made->UseRealTime()->Unit(benchmark::kMillisecond);
  };
  for (const auto& [name, direction] : {std::pair{"host_read", TransferDirection::kRead},
                                        {"host_write", TransferDirection::kWrite}}) {
    with(RegisterBenchmark(name, [direction = direction](benchmark::State& state) {
           host(state, direction);
         })->ArgsProduct({{1, 4}, {0, 1, 2}}));
  }
  with(RegisterBenchmark("memcpy", plain_memcpy)->Arg(1)->Arg(4));
  with(RegisterBenchmark("queue_host_read", queue_host_read)->Arg(1)->Arg(4));
  for (const int num_blocks : {1, 4}) {
    with(RegisterBenchmark("plain_read", plain_read)->Arg(num_blocks));
    with(RegisterBenchmark("disk_read", [](benchmark::State& state) {
           disk(state, TransferDirection::kRead);
         })->Arg(num_blocks));
  }
  with(RegisterBenchmark("disk_write",
                         [](benchmark::State& state) { disk(state, TransferDirection::kWrite); })
           ->Arg(1)
           ->Arg(4));
}

}  // namespace
}  // namespace karez

int main(int argc, char** argv) {
  karez::disk_directory = std::filesystem::temp_directory_path().string();
  constexpr std::string_view kFlag = "--directory=";
  benchmark::Initialize(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]).starts_with(kFlag)) {
      karez::disk_directory = std::string_view(argv[i]).substr(kFlag.size());
    }
  }
  karez::register_all();
  benchmark::RunSpecifiedBenchmarks();
  karez::disk_tier.reset();
  benchmark::Shutdown();
  return 0;
}
