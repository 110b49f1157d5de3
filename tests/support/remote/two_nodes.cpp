#include "support/remote/two_nodes.h"

#include <cstdio>
#include <cstdlib>

#include "kv/tier/home_space.h"

namespace karez::test {

namespace {

template <typename T>
T value_of(Expected<T> expected) {
  if (!expected) {
    std::fprintf(stderr, "%s\n", expected.error().to_string().c_str());
    std::abort();
  }
  return std::move(*expected);
}

}  // namespace

PeerConfig small_config() {
  PeerConfig config;
  config.model_digest[0] = 0xAB;
  config.num_layers = 2;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.block_tokens = 16;
  config.block_bytes = 1024;
  config.kv_type = "bf16";
  config.index_kind = "r2";
  config.index_bytes = 64;
  config.max_tokens = 256;
  return config;
}

std::byte byte_of(std::uint64_t seed, std::uint64_t slot, std::size_t at) {
  return static_cast<std::byte>((seed * 131 + slot * 17 + at * 7 + at / 251) & 0xFFU);
}

KvExport make_export(const PeerConfig& config, ExportMemory& memory, std::uint64_t seed,
                     int num_tokens) {
  KvExport made;
  made.epoch = seed;
  for (int i = 0; i < num_tokens; ++i) {
    made.tokens.push_back(i * 3);
  }
  made.num_blocks =
      (static_cast<std::uint32_t>(num_tokens) + config.block_tokens - 1) / config.block_tokens;
  const std::size_t num_all =
      std::size_t{made.num_blocks} * config.num_layers * config.num_kv_heads;
  const std::size_t last_layer = num_all - num_all / config.num_layers;
  for (std::size_t i = 0; i < num_all; ++i) {
    const std::size_t slot = i < last_layer ? i : num_all - 1 - (i - last_layer);
    std::byte* bytes = memory.bytes().data() + slot * config.block_bytes;
    for (std::size_t at = 0; at < config.block_bytes; ++at) {
      bytes[at] = byte_of(seed, slot, at);
    }
    made.blocks.push_back({.offset = slot * config.block_bytes,
                           .checksum = block_checksum(bytes, config.block_bytes)});
  }
  for (std::size_t i = 0; i < num_all * config.index_bytes; ++i) {
    made.index.push_back(static_cast<std::byte>(i * 5 + seed));
  }
  made.note = {std::byte{1}, std::byte{2}, std::byte{3}};
  return made;
}

bool holds_block(const PeerConfig& config, const std::vector<std::byte>& memory, std::uint64_t seed,
                 std::uint64_t offset) {
  for (std::size_t at = 0; at < config.block_bytes; ++at) {
    if (memory[at] != byte_of(seed, offset / config.block_bytes, at)) {
      return false;
    }
  }
  return true;
}

TwoNodes::TwoNodes(const NodeOptions& node_options) : options(node_options) {
  memory = value_of(
      ExportMemory::create(kRoomInBlocks * config.block_bytes, {.share = options.share_memory}));
  start_exporter();
  PeerPoolOptions pool_options;
  pool_options.config = config;
  pool_options.transports = "tcp";
  pool_options.one_sided_network = options.one_sided_network;
  options.pool(pool_options);
  pool = value_of(PeerPool::create(pool_options, clock));
  block.resize(config.block_bytes);
}

void TwoNodes::start_exporter(std::uint16_t port) {
  KvExporterOptions exporter_options;
  exporter_options.config = config;
  exporter_options.transports = "tcp";
  exporter_options.one_sided_network = options.one_sided_network;
  exporter_options.port = port;
  options.exporter(exporter_options);
  exporter = value_of(KvExporter::create(exporter_options, memory, clock));
}

bool TwoNodes::poll_until(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    pool->poll();
    if (condition()) {
      return true;
    }
    if (std::chrono::steady_clock::now() > end) {
      return false;
    }
    pool->wait_until(clock.now() + std::chrono::milliseconds(5));
  }
}

Expected<Manifest> TwoNodes::fetch(const RequestKey& key, std::uint64_t epoch) {
  const FetchId id = pool->fetch(address(), key, epoch, clock.now() + std::chrono::hours(1));
  std::optional<Expected<Manifest>> outcome;
  if (!poll_until([&] {
        outcome = pool->take(id);
        return outcome.has_value();
      })) {
    return fail(StatusCode::kInternal, "nothing came of a fetch");
  }
  return std::move(*outcome);
}

TransferStatus TwoNodes::read(LeaseId lease, const RemoteBlock& from) {
  RemoteRead read;
  read.ticket = 1;
  read.lease = lease;
  read.num_blocks = 1;
  read.blocks[0] = from;
  read.memory[0] = block.data();
  pool->read({&read, 1});
  std::vector<RemoteReadResult> results;
  poll_until([&] {
    pool->take_reads(results);
    return !results.empty();
  });
  return results.empty() ? TransferStatus::kCancelled : results[0].status;
}

}  // namespace karez::test
