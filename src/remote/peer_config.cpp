#include "remote/peer_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>

#include "base/hex.h"
#include "remote/wire_blocks.h"

namespace karez {

namespace {

constexpr std::uint64_t kMaxBlockBytes = std::uint64_t{1} << 20U;  // one fits a message
constexpr std::uint64_t kMaxLayers = 4096;
constexpr std::uint64_t kMaxHeads = 4096;
constexpr std::uint64_t kMaxBlockTokens = 4096;

std::string hex(std::span<const std::uint8_t> bytes) { return to_hex(std::as_bytes(bytes)); }

std::optional<Status> check_number(std::string_view field, std::uint64_t seen, std::uint64_t least,
                                   std::uint64_t most) {
  if (seen >= least && seen <= most) {
    return std::nullopt;
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("a peer's {} is {}, allowed are {} to {}", field, seen, least, most));
}

std::optional<Status> check_name(std::string_view field, std::string_view name) {
  const bool is_printable = std::all_of(name.begin(), name.end(), [](char character) {
    return character >= 0x21 && character <= 0x7E;
  });
  if (!name.empty() && name.size() <= PeerConfig::kMaxNameBytes && is_printable) {
    return std::nullopt;
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("a peer's {} is a name of {} bytes, allowed are 1 to {} of printable "
                            "ASCII",
                            field, name.size(), PeerConfig::kMaxNameBytes));
}

template <typename T>
std::optional<Status> compare(std::string_view field, const T& here, const T& there) {
  if (here == there) {
    return std::nullopt;
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("peers do not fit: {} is {} here and {} there", field, here, there));
}

std::optional<Status> first_of(std::initializer_list<std::optional<Status>> problems) {
  for (const std::optional<Status>& problem : problems) {
    if (problem) {
      return problem;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<Status> check_peer_config(const PeerConfig& config) {
  std::optional<Status> problem = first_of({
      check_number("num_layers", config.num_layers, 1, kMaxLayers),
      check_number("num_kv_heads", config.num_kv_heads, 1, kMaxHeads),
      check_number("head_dim", config.head_dim, 1, kMaxBlockBytes),
      check_number("block_tokens", config.block_tokens, 1, kMaxBlockTokens),
      check_number("block_bytes", config.block_bytes, 1, kMaxBlockBytes),
      check_number("index_bytes", config.index_bytes, 0, kMaxBlockBytes),
      check_number("max_tokens", config.max_tokens, 1, std::uint64_t{1} << 31U),
      check_name("kv_type", config.kv_type),
      check_name("index_kind", config.index_kind),
      check_name("wire_type", config.wire_type),
  });
  if (problem) {
    return problem;
  }
  if (std::optional<Status> cannot_travel = check_wire_type(config)) {
    return cannot_travel;
  }
  // Places in a manifest have 32 bits.
  const std::uint64_t num_blocks =
      (std::uint64_t{config.max_tokens} + config.block_tokens - 1) / config.block_tokens;
  return check_number("number of blocks of a sequence, layers times heads times blocks,",
                      num_blocks * config.num_layers * config.num_kv_heads, 1,
                      (std::uint64_t{1} << 32U) - 1);
}

std::optional<Status> find_mismatch(const PeerConfig& here, const PeerConfig& there) {
  return first_of({
      compare("model_digest", hex(here.model_digest), hex(there.model_digest)),
      compare("num_layers", here.num_layers, there.num_layers),
      compare("num_kv_heads", here.num_kv_heads, there.num_kv_heads),
      compare("head_dim", here.head_dim, there.head_dim),
      compare("block_tokens", here.block_tokens, there.block_tokens),
      compare("kv_type", here.kv_type, there.kv_type),
      compare("block_bytes", here.block_bytes, there.block_bytes),
      compare("index_kind", here.index_kind, there.index_kind),
      compare("index_bytes", here.index_bytes, there.index_bytes),
      compare("wire_type", here.wire_type, there.wire_type),
  });
}

}  // namespace karez
