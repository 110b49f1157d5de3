// A producer and a consumer of KV in one process, small and with known bytes; for tests.
//
// Thread: one. Owns: exported memory, exporter, pool.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "remote/kv_exporter.h"
#include "remote/peer_pool.h"

namespace karez::test {

// Stands still until it is moved; may be read by several threads.
class SharedClock final : public Clock {
 public:
  TimePoint now() const override { return TimePoint(Duration(ticks_.load())); }
  void sleep_until(TimePoint time) const override { ticks_ = time.time_since_epoch().count(); }
  void advance(Duration duration) { ticks_ += duration.count(); }

 private:
  mutable std::atomic<Duration::rep> ticks_ = Duration(std::chrono::hours(1)).count();
};

// 2 layers, 2 KV heads, blocks of 1 KiB, 64 bytes of key index a block.
PeerConfig small_config();

inline constexpr int kRoomInBlocks = 64;  // of the exported memory
inline constexpr auto kPatience = std::chrono::seconds(20);

// Fills the blocks of the memory with bytes of the seed, and describes them as an export of so many
// tokens. Block i lies in slot i, except those of the last layer, which lie in reverse order.
KvExport make_export(const PeerConfig& config, ExportMemory& memory, std::uint64_t seed,
                     int num_tokens);
// Byte `at` of the block that lies in this slot.
std::byte byte_of(std::uint64_t seed, std::uint64_t slot, std::size_t at);
// Whether the memory holds the block that an offset stands for.
bool holds_block(const PeerConfig& config, const std::vector<std::byte>& memory, std::uint64_t seed,
                 std::uint64_t offset);

struct NodeOptions {
  bool share_memory = false;
  bool one_sided_network = false;
  std::function<void(KvExporterOptions&)> exporter = [](KvExporterOptions&) {};
  std::function<void(PeerPoolOptions&)> pool = [](PeerPoolOptions&) {};
};

class TwoNodes {
 public:
  explicit TwoNodes(const NodeOptions& options = {});

  PeerAddress address() const { return {"127.0.0.1", exporter->port()}; }
  // Fetches, and waits for the outcome.
  Expected<Manifest> fetch(const RequestKey& key, std::uint64_t epoch);
  // Polls the pool until the condition holds; false if it takes too long.
  bool poll_until(const std::function<bool()>& condition);
  // Reads one block; the bytes are in `block`.
  TransferStatus read(LeaseId lease, const RemoteBlock& from);
  // A new exporter over the same memory.
  void start_exporter(std::uint16_t port = 0);

  NodeOptions options;
  PeerConfig config = small_config();
  SharedClock clock;
  std::shared_ptr<ExportMemory> memory;
  std::unique_ptr<KvExporter> exporter;
  std::shared_ptr<PeerPool> pool;
  std::vector<std::byte> block;
};

}  // namespace karez::test
