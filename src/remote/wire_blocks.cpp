#include "remote/wire_blocks.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <cstring>
#include <string>

#include "attention/archive_page.h"
#include "kv/block_layout.h"
#include "kv/tier/home_space.h"

namespace karez {
namespace {

constexpr std::uint32_t kMaxHeadDim = 512;
constexpr std::uint32_t kHeadDimStep = 16;
constexpr std::size_t kChecksumBytes = sizeof(std::uint64_t);

}  // namespace

bool is_wire_type(std::string_view name) { return name == kNativeWire || name == kR4Wire; }

std::optional<Status> check_wire_type(const PeerConfig& config) {
  if (!is_wire_type(config.wire_type)) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("a peer's wire_type is {}, allowed are native, r4", config.wire_type));
  }
  if (config.wire_type == kNativeWire) {
    return std::nullopt;
  }
  const auto problem = [](std::string_view field, const auto& seen, std::string_view allowed) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("a peer's {} is {}, allowed with wire_type r4 is {}", field, seen, allowed));
  };
  if (config.block_tokens != kBlockSize) {
    return problem("block_tokens", config.block_tokens, std::to_string(kBlockSize));
  }
  if (config.head_dim < kHeadDimStep || config.head_dim > kMaxHeadDim ||
      config.head_dim % kHeadDimStep != 0) {
    return problem("head_dim", config.head_dim, "a multiple of 16 from 16 to 512");
  }
  const auto type = parse_kv_type(config.kv_type);
  if (!type) {
    return problem("kv_type", config.kv_type, "one of this program");
  }
  const std::size_t bytes = BlockLayout::of(*type, static_cast<int>(config.head_dim)).slot_bytes;
  if (config.block_bytes != bytes) {
    return problem("block_bytes", config.block_bytes, std::to_string(bytes));
  }
  return std::nullopt;
}

std::size_t wire_block_bytes(const PeerConfig& config) {
  return config.wire_type == kR4Wire
             ? kChecksumBytes + ArchiveLayout::of(static_cast<int>(config.head_dim)).page_bytes
             : config.block_bytes;
}

WireBlocks::WireBlocks(const PeerConfig& config)
    : block_bytes_(config.block_bytes), wire_bytes_(wire_block_bytes(config)) {
  if (config.wire_type == kR4Wire) {
    head_dim_ = static_cast<int>(config.head_dim);
    type_ = parse_kv_type(config.kv_type).value();
  }
}

void WireBlocks::put(const std::byte* block, std::byte* out) const {
  if (!type_) {
    std::memcpy(out, block, block_bytes_);
    return;
  }
  std::byte* page = out + kChecksumBytes;
  archive_block(*type_, head_dim_, block, page);
  // Of the block as it lies there now: if it is not that of the manifest, the consumer sees it.
  const std::uint64_t checksum =
      XXH3_64bits_withSeed(page, wire_bytes_ - kChecksumBytes, block_checksum(block, block_bytes_));
  std::memcpy(out, &checksum, sizeof checksum);
}

bool WireBlocks::take(const std::byte* in, std::uint64_t checksum, std::byte* block) const {
  if (!type_) {
    if (block_checksum(in, block_bytes_) != checksum) {
      return false;
    }
    std::memcpy(block, in, block_bytes_);
    return true;
  }
  const std::byte* page = in + kChecksumBytes;
  std::uint64_t said = 0;
  std::memcpy(&said, in, sizeof said);
  if (XXH3_64bits_withSeed(page, wire_bytes_ - kChecksumBytes, checksum) != said) {
    return false;
  }
  restore_block(*type_, head_dim_, page, block);
  return true;
}

}  // namespace karez
