#include "support/tier/tier_cases.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/arena.h"
#include "kv/tier/disk_tier.h"
#include "kv/tier/host_tier.h"
#include "kv/tier/throttled_tier.h"
#include "remote/remote_tier.h"
#include "support/tier/fake_clock.h"
#include "support/tier/faulty_tier.h"
#include "support/tier/queued_tier.h"

namespace karez::test {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr int kMaxInFlight = 16;

template <typename T>
T value_of(Expected<T> expected) {
  if (!expected) {
    std::fprintf(stderr, "%s\n", expected.error().to_string().c_str());
    std::abort();
  }
  return std::move(*expected);
}

// The steady clock is not ours to delete.
std::shared_ptr<const Clock> steady() {
  return {&Clock::steady(), [](const Clock*) {}};
}

std::size_t host_stride(std::size_t block_bytes) { return (block_bytes + 63) / 64 * 64; }

struct Host {
  std::unique_ptr<Tier> tier;
  std::span<std::byte> medium;
};

Host make_host(std::size_t block_bytes, int num_extents, int num_workers) {
  HostTierOptions options;
  options.block_bytes = block_bytes;
  options.num_workers = num_workers;
  options.max_in_flight = kMaxInFlight;
  Arena arena = value_of(Arena::create(host_stride(block_bytes) * kExtentBlocks *
                                       static_cast<std::size_t>(num_extents)));
  const std::span<std::byte> medium = arena.bytes();
  return {value_of(HostTier::create(options, std::move(arena))), medium};
}

TierUnderTest host(std::size_t block_bytes, int num_extents, int num_workers) {
  return {steady(), make_host(block_bytes, num_extents, num_workers).tier, {}};
}

// Nothing is adopted: everything is the local tier's.
TierUnderTest remote(std::size_t block_bytes, int num_extents) {
  PeerPoolOptions options;
  options.config.num_layers = 1;
  options.config.num_kv_heads = 1;
  options.config.head_dim = 1;
  options.config.block_tokens = 16;
  options.config.block_bytes = block_bytes;
  options.config.kv_type = "f32";
  options.config.index_kind = "none";
  options.config.max_tokens = 16;
  return {steady(),
          std::make_unique<RemoteTier>(make_host(block_bytes, num_extents, 1).tier,
                                       value_of(PeerPool::create(options))),
          {}};
}

TierUnderTest disk(std::size_t block_bytes, int num_extents) {
  DiskTierOptions options;
  options.directory = std::filesystem::temp_directory_path().string();
  options.block_bytes = block_bytes;
  options.max_in_flight = kMaxInFlight;
  // The room that an extent takes depends on the sectors of that disk.
  options.capacity_bytes = 1 << 30;
  const std::int64_t extent_bytes = value_of(DiskTier::create(options))->capacity().extent_bytes;
  options.capacity_bytes = extent_bytes * num_extents + extent_bytes / 2;
  return {steady(), value_of(DiskTier::create(options)), {}};
}

TierUnderTest throttled(std::size_t block_bytes, int num_extents) {
  const auto clock = std::make_shared<FakeClock>();
  const Throttle throttle{.bytes_per_second = std::int64_t{1} << 20U, .latency = milliseconds(3)};
  return {clock,
          std::make_unique<ThrottledTier>(make_host(block_bytes, num_extents, 0).tier, throttle,
                                          *clock),
          {}};
}

TierUnderTest throttled_on_real_time(std::size_t block_bytes, int num_extents) {
  const Throttle throttle{.bytes_per_second = std::int64_t{4} << 30U, .latency = microseconds(20)};
  return {steady(),
          std::make_unique<ThrottledTier>(make_host(block_bytes, num_extents, 1).tier, throttle,
                                          Clock::steady()),
          {}};
}

TransferQueueOptions small_queue() {
  TransferQueueOptions options;
  options.max_in_flight = 6;
  options.max_queued = 12;
  options.max_results = 24;
  return options;
}

TierUnderTest queue_over(std::unique_ptr<Tier> tier, std::shared_ptr<const Clock> clock,
                         Clock::Duration time_limit) {
  auto queued = std::make_unique<QueuedTier>(std::move(tier), small_queue(), *clock, time_limit);
  return {std::move(clock), std::move(queued), {}};
}

TierUnderTest queue_over_host(std::size_t block_bytes, int num_extents) {
  return queue_over(make_host(block_bytes, num_extents, 1).tier, steady(), std::chrono::hours(1));
}

TierUnderTest queue_over_faulty(std::size_t block_bytes, int num_extents, const Faults& faults) {
  const auto clock = std::make_shared<FakeClock>();
  Host below = make_host(block_bytes, num_extents, 0);
  const std::size_t stride = host_stride(block_bytes);
  const auto flip_bit = [medium = below.medium, stride, block_bytes](ExtentId extent, int block) {
    const std::size_t at =
        (extent.value * static_cast<std::size_t>(kExtentBlocks) + static_cast<std::size_t>(block)) *
        stride;
    medium[at + block_bytes / 3] ^= std::byte{0x10};
  };
  auto faulty = std::make_unique<FaultyTier>(std::move(below.tier), faults, flip_bit, *clock);
  FaultyTier* lost_here = faulty.get();
  TierUnderTest made = queue_over(std::move(faulty), clock, milliseconds(20));
  made.report_lost = [lost_here] { lost_here->report_lost(); };
  return made;
}

TierCase faulty_case(std::string name, const Faults& faults) {
  return {std::move(name), true, [faults](std::size_t block_bytes, int num_extents) {
            return queue_over_faulty(block_bytes, num_extents, faults);
          }};
}

}  // namespace

const std::vector<TierCase>& tier_cases() {
  static const std::vector<TierCase> cases = {
      {"HostInline", false, [](std::size_t bytes, int extents) { return host(bytes, extents, 0); }},
      {"HostOneWorker", false,
       [](std::size_t bytes, int extents) { return host(bytes, extents, 1); }},
      {"HostThreeWorkers", false,
       [](std::size_t bytes, int extents) { return host(bytes, extents, 3); }},
      {"Disk", false, disk},
      {"Remote", false, remote},
      {"Throttled", false, throttled},
      {"ThrottledOnRealTime", false, throttled_on_real_time},
      {"Queue", false, queue_over_host},
      faulty_case("QueueOverSound", {}),
      faulty_case("QueueOverSlow", {.delay = milliseconds(7)}),
      faulty_case("QueueOverTooSlow", {.delay = milliseconds(21)}),
      faulty_case("QueueOverFailing", {.fail_every = 3}),
      faulty_case("QueueOverShort", {.short_every = 4}),
      faulty_case("QueueOverRotten", {.rot_every = 3}),
      faulty_case("QueueOverSilent", {.lose_every = 5}),
      faulty_case("QueueOverEverything", {.fail_every = 11,
                                          .short_every = 7,
                                          .rot_every = 5,
                                          .lose_every = 13,
                                          .delay = milliseconds(3)}),
  };
  return cases;
}

void wait_for_results(TierUnderTest& under_test, std::vector<TransferResult>& results) {
  const std::size_t before = results.size();
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (true) {
    under_test.tier->poll(results);
    if (results.size() > before) {
      return;
    }
    if (std::chrono::steady_clock::now() > give_up) {
      std::fprintf(stderr, "%s: nothing moves\n", under_test.tier->describe().c_str());
      std::abort();
    }
    const Clock::TimePoint until = under_test.clock->now() + milliseconds(100);
    under_test.tier->wait_until(until);
    if (under_test.report_lost && under_test.clock->now() >= until) {
      under_test.report_lost();
    }
  }
}

std::vector<TransferResult> run_transfers(TierUnderTest& under_test,
                                          const std::vector<Transfer>& transfers) {
  std::vector<TransferResult> results;
  std::span<const Transfer> left = transfers;
  while (results.size() < transfers.size()) {
    left = left.subspan(under_test.tier->submit(left));
    wait_for_results(under_test, results);
  }
  return results;
}

}  // namespace karez::test
