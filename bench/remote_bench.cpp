// What reading another node's blocks costs, from a process on this machine.
//
//   read/WAY/BLOCKS   BLOCKS random blocks of 4 KiB, asked for at once, waited for
//     WAY 0: in messages over TCP   1: shared memory   2: UCX's one-sided reads (UCX_TLS=tcp)
//
// Real time, bytes/s, and blocks/s. JSON: --benchmark_format=json
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "kv/tier/home_space.h"
#include "remote/kv_exporter.h"
#include "remote/peer_pool.h"

namespace karez {
namespace {

constexpr std::uint32_t kNumLayers = 8;
constexpr std::uint32_t kNumHeads = 8;
constexpr std::uint32_t kNumTokens = 8192;
constexpr std::size_t kBlockBytes = 4096;
constexpr const char* kTransports = "tcp";

enum Way { kMessages, kShared, kOneSided, kNumWays };

template <class T>
T value_or_exit(Expected<T> expected) {
  if (!expected) {
    fmt::print(stderr, "{}\n", expected.error().to_string());
    std::exit(1);
  }
  return std::move(*expected);
}

PeerConfig config() {
  PeerConfig config;
  config.num_layers = kNumLayers;
  config.num_kv_heads = kNumHeads;
  config.head_dim = 64;
  config.block_tokens = 16;
  config.block_bytes = kBlockBytes;
  config.kv_type = "bf16";
  config.index_kind = "none";
  config.max_tokens = kNumTokens;
  return config;
}

struct Offer {
  std::uint16_t port = 0;
  RequestKey key;
};

[[noreturn]] void produce(int to_parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  KvExport exported;
  exported.tokens.assign(kNumTokens, 1);
  exported.num_blocks = kNumTokens / 16;
  exported.blocks.resize(std::size_t{exported.num_blocks} * kNumLayers * kNumHeads);
  const auto memory = value_or_exit(ExportMemory::create(exported.blocks.size() * kBlockBytes));
  std::mt19937_64 random(1);
  for (std::size_t i = 0; i < exported.blocks.size(); ++i) {
    std::byte* block = memory->bytes().data() + i * kBlockBytes;
    for (std::size_t at = 0; at < kBlockBytes; at += sizeof(std::uint64_t)) {
      const std::uint64_t word = random();
      std::memcpy(block + at, &word, sizeof word);
    }
    exported.blocks[i] = {i * kBlockBytes, block_checksum(block, kBlockBytes)};
  }
  KvExporterOptions options;
  options.config = config();
  options.lease_duration = std::chrono::hours(1);
  options.one_sided_network = true;
  options.transports = kTransports;
  const auto exporter = value_or_exit(KvExporter::create(options, memory));
  const Offer offer{exporter->port(), value_or_exit(exporter->add(std::move(exported)))};
  if (write(to_parent, &offer, sizeof offer) != sizeof offer) {
    std::exit(1);
  }
  while (true) {
    pause();
  }
}

Offer start_producer() {
  std::array<int, 2> pipe_ends = {};
  Offer offer;
  if (pipe(pipe_ends.data()) != 0) {
    std::exit(1);
  }
  if (fork() == 0) {
    produce(pipe_ends[1]);
  }
  if (read(pipe_ends[0], &offer, sizeof offer) != sizeof offer) {
    std::exit(1);
  }
  return offer;
}

class Consumer {
 public:
  Consumer(const Offer& offer, Way way) {
    PeerPoolOptions options;
    options.config = config();
    options.use_shared_memory = way == kShared;
    options.one_sided_network = way == kOneSided;
    options.transports = kTransports;
    pool_ = value_or_exit(PeerPool::create(options));
    const Clock::TimePoint deadline = Clock::steady().now() + std::chrono::seconds(30);
    const FetchId fetch = pool_->fetch({"127.0.0.1", offer.port}, offer.key, 0, deadline);
    std::optional<Expected<Manifest>> manifest;
    while (!(manifest = pool_->take(fetch))) {
      pool_->wait_until(deadline);
      pool_->poll();
    }
    manifest_ = value_or_exit(std::move(*manifest));
  }

  // One block a read.
  void read(std::size_t num_blocks, std::vector<std::byte>& memory) {
    reads_.resize(num_blocks);
    for (std::size_t i = 0; i < num_blocks; ++i) {
      RemoteRead& read = reads_[i];
      read.ticket = i;
      read.lease = manifest_.lease;
      read.num_blocks = 1;
      read.blocks[0] = manifest_.blocks[random_() % manifest_.blocks.size()];
      read.memory[0] = memory.data() + i * kBlockBytes;
    }
    pool_->read(reads_);
    std::size_t num_done = 0;
    while (true) {
      results_.clear();
      pool_->take_reads(results_);
      num_done += results_.size();
      for (const RemoteReadResult& result : results_) {
        if (result.status != TransferStatus::kOk) {
          fmt::print(stderr, "a read failed: {}\n", to_string(result.status));
          std::exit(1);
        }
      }
      if (num_done == num_blocks) {
        return;
      }
      pool_->wait_until(Clock::steady().now() + std::chrono::seconds(1));
      pool_->poll();
    }
  }

 private:
  std::unique_ptr<PeerPool> pool_;
  Manifest manifest_;
  std::mt19937_64 random_{7};
  std::vector<RemoteRead> reads_;
  std::vector<RemoteReadResult> results_;
};

Offer offer;

void read_blocks(benchmark::State& state) {
  const auto num_blocks = static_cast<std::size_t>(state.range(1));
  Consumer consumer(offer, static_cast<Way>(state.range(0)));
  std::vector<std::byte> memory(num_blocks * kBlockBytes);
  for (auto _ : state) {
    consumer.read(num_blocks, memory);
  }
  const auto blocks = state.iterations() * static_cast<std::int64_t>(num_blocks);
  state.SetItemsProcessed(blocks);
  state.SetBytesProcessed(blocks * static_cast<std::int64_t>(kBlockBytes));
}

}  // namespace
}  // namespace karez

int main(int argc, char** argv) {
  karez::offer = karez::start_producer();
  // The request would end with the first consumer that is done.
  const karez::Consumer keeper(karez::offer, karez::kMessages);
  for (int way = 0; way < karez::kNumWays; ++way) {
    for (const int num_blocks : {1, 16, 128, 1024}) {
      benchmark::RegisterBenchmark("read", karez::read_blocks)
          ->Args({way, num_blocks})
          ->UseRealTime()
          ->MinTime(0.3);
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
