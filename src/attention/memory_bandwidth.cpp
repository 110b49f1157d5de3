#include "attention/memory_bandwidth.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "base/arena.h"

namespace karez {
namespace {

using SteadyClock = std::chrono::steady_clock;
using Word = std::uint64_t;

constexpr std::size_t kStreams = 4;  // far apart: one stream does not fill the memory pipeline
constexpr std::size_t kLineWords = 8;

// A sum over the words at one cache line each: the reads are what takes the time.
Word read_lines(const Word* data, std::size_t num_words) {
  const std::size_t part = num_words / kStreams / kLineWords * kLineWords;
  Word sums[kStreams] = {};
  for (std::size_t i = 0; i < part; i += kLineWords) {
    for (std::size_t s = 0; s < kStreams; ++s) {
      sums[s] += data[s * part + i];
    }
  }
  return sums[0] + sums[1] + sums[2] + sums[3];
}

}  // namespace

Expected<double> measure_read_bandwidth(int num_threads, std::int64_t buffer_bytes,
                                        int num_passes) {
  if (num_threads < 1 || buffer_bytes < 1 || num_passes < 1) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("memory bandwidth: {} threads, {} bytes, {} passes; each must be 1 or "
                            "more",
                            num_threads, buffer_bytes, num_passes));
  }
  auto arena = Arena::create(static_cast<std::size_t>(buffer_bytes));
  if (!arena) {
    return fail(arena.error());
  }
  const auto bytes = arena->bytes();
  const auto threads = static_cast<std::size_t>(num_threads);
  const std::size_t part_words = bytes.size() / sizeof(Word) / threads;
  std::atomic<Word> total{0};
  std::barrier pass_border(num_threads + 1);
  std::vector<std::thread> workers;
  for (std::size_t thread = 0; thread < threads; ++thread) {
    workers.emplace_back([&, thread] {
      auto* part = reinterpret_cast<Word*>(bytes.data()) + thread * part_words;
      std::memset(part, 1, part_words * sizeof(Word));  // untouched pages are all one zero page
      for (int pass = 0; pass < num_passes; ++pass) {
        pass_border.arrive_and_wait();
        total.fetch_add(read_lines(part, part_words), std::memory_order_relaxed);
        pass_border.arrive_and_wait();
      }
    });
  }
  double best_seconds = 0.0;
  for (int pass = 0; pass < num_passes; ++pass) {
    pass_border.arrive_and_wait();
    const auto start = SteadyClock::now();
    pass_border.arrive_and_wait();
    const double seconds = std::chrono::duration<double>(SteadyClock::now() - start).count();
    best_seconds = pass == 0 ? seconds : std::min(best_seconds, seconds);
  }
  for (std::thread& worker : workers) {
    worker.join();
  }
  const double read = static_cast<double>(part_words * threads * sizeof(Word));
  return read / std::max(best_seconds, 1e-9);
}

}  // namespace karez
