#include "remote/wire_messages.h"

#include <fmt/format.h>

#include <algorithm>

#include "remote/wire_blocks.h"

namespace karez {

namespace {

// Big enough that the network is busy, small enough that a decode step does not wait for a
// prefetch.
constexpr std::size_t kBlockMessageBytes = 128 << 10U;

std::span<const std::byte> bytes_of(std::span<const std::uint8_t> bytes) {
  return std::as_bytes(bytes);
}

template <std::size_t kSize>
void get_array(WireReader& reader, std::array<std::uint8_t, kSize>& array) {
  const std::span<const std::byte> bytes = reader.get_bytes(kSize);
  std::transform(bytes.begin(), bytes.end(), array.begin(),
                 [](std::byte byte) { return std::to_integer<std::uint8_t>(byte); });
}

void put_name(WireWriter& writer, std::string_view name) {
  std::array<std::byte, PeerConfig::kMaxNameBytes> bytes = {};
  const std::size_t size = std::min(name.size(), bytes.size());
  std::copy_n(std::as_bytes(std::span(name)).begin(), size, bytes.begin());
  writer.put_bytes(bytes);
}

std::string get_name(WireReader& reader) {
  std::string name;
  bool has_ended = false;
  for (const std::byte byte : reader.get_bytes(PeerConfig::kMaxNameBytes)) {
    const auto character = std::to_integer<unsigned char>(byte);
    if (character == 0) {
      has_ended = true;
    } else if (has_ended || character < 0x21 || character > 0x7E) {
      reader.set_bad();
    } else {
      name.push_back(static_cast<char>(character));
    }
  }
  return name;
}

void put_config(WireWriter& writer, const PeerConfig& config) {
  writer.put_bytes(bytes_of(config.model_digest))
      .put(config.num_layers)
      .put(config.num_kv_heads)
      .put(config.head_dim)
      .put(config.block_tokens)
      .put(config.block_bytes)
      .put(config.index_bytes)
      .put(config.max_tokens)
      .put(std::uint32_t{0});
  put_name(writer, config.kv_type);
  put_name(writer, config.index_kind);
  put_name(writer, config.wire_type);
}

PeerConfig get_config(WireReader& reader) {
  PeerConfig config;
  get_array(reader, config.model_digest);
  config.num_layers = reader.get<std::uint32_t>();
  config.num_kv_heads = reader.get<std::uint32_t>();
  config.head_dim = reader.get<std::uint32_t>();
  config.block_tokens = reader.get<std::uint32_t>();
  config.block_bytes = reader.get<std::uint64_t>();
  config.index_bytes = reader.get<std::uint64_t>();
  config.max_tokens = reader.get<std::uint32_t>();
  if (reader.get<std::uint32_t>() != 0) {
    reader.set_bad();
  }
  config.kv_type = get_name(reader);
  config.index_kind = get_name(reader);
  config.wire_type = get_name(reader);
  return config;
}

tl::unexpected<Status> malformed(std::string_view message) {
  return fail(StatusCode::kCorruption,
              fmt::format("a {} message is malformed or has another length than it says", message));
}

tl::unexpected<Status> out_of_range(std::string_view message, std::string_view field,
                                    std::uint64_t seen, std::uint64_t most) {
  return fail(StatusCode::kCorruption, fmt::format("{} of a {} message is {}, allowed are up to {}",
                                                   field, message, seen, most));
}

std::vector<std::byte> copy_of(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

std::vector<std::byte> encode_leases(WireType type, std::uint64_t request,
                                     const LeasesMessage& message) {
  WireWriter writer(type, request);
  writer.put(static_cast<std::uint32_t>(message.leases.size()));
  for (const std::uint64_t lease : message.leases) {
    writer.put(lease);
  }
  return writer.finish();
}

// Numbers on the wire, whatever the order of the enum.
constexpr std::array kErrorCodes = {StatusCode::kInvalidArgument,   StatusCode::kNotFound,
                                    StatusCode::kResourceExhausted, StatusCode::kUnavailable,
                                    StatusCode::kDeadlineExceeded,  StatusCode::kCancelled,
                                    StatusCode::kCorruption,        StatusCode::kIoError,
                                    StatusCode::kUnimplemented,     StatusCode::kInternal};

}  // namespace

std::size_t blocks_per_message(const PeerConfig& config) {
  return std::clamp<std::size_t>(kBlockMessageBytes / wire_block_bytes(config), 1,
                                 kMaxBlocksPerRead);
}

std::vector<std::byte> encode(std::uint64_t request, const HelloMessage& message) {
  WireWriter writer(WireType::kHello, request);
  writer.put_bytes(bytes_of(message.nonce));
  put_config(writer, message.config);
  return writer.finish();
}

std::vector<std::byte> encode(std::uint64_t request, const HelloReplyMessage& message) {
  WireWriter writer(WireType::kHelloReply, request);
  writer.put_bytes(bytes_of(message.nonce)).put_bytes(bytes_of(message.proof));
  put_config(writer, message.config);
  return writer.finish();
}

std::vector<std::byte> encode(std::uint64_t request, const ConfirmMessage& message) {
  return WireWriter(WireType::kConfirm, request).put_bytes(bytes_of(message.proof)).finish();
}

std::vector<std::byte> encode(std::uint64_t request, const ReadyMessage& message) {
  return WireWriter(WireType::kReady, request)
      .put(message.lease_ms)
      .put(message.memory_address)
      .put(message.memory_bytes)
      .put_sized(message.shared_worker)
      .put_sized(message.shared_key)
      .put_sized(message.network_worker)
      .put_sized(message.network_key)
      .finish();
}

std::vector<std::byte> encode(std::uint64_t request, const FetchMessage& message) {
  return WireWriter(WireType::kFetch, request)
      .put_bytes(bytes_of(message.key.bytes))
      .put(message.epoch)
      .finish();
}

std::vector<std::byte> encode(std::uint64_t request, const ManifestMessage& message) {
  return WireWriter(WireType::kManifest, request)
      .put(message.lease)
      .put(message.epoch)
      .put(message.num_tokens)
      .put(message.num_blocks)
      .put(message.index_bytes)
      .put(message.note_bytes)
      .put(std::uint32_t{0})
      .finish();
}

namespace {
void put_part(WireWriter& writer, const FetchPartMessage& part) {
  writer.put(part.lease)
      .put(static_cast<std::uint32_t>(part.section))
      .put(part.length)
      .put(part.offset);
}
}  // namespace

std::vector<std::byte> encode(std::uint64_t request, const FetchPartMessage& message) {
  WireWriter writer(WireType::kFetchPart, request);
  put_part(writer, message);
  return writer.finish();
}

std::vector<std::byte> encode(std::uint64_t request, const PartMessage& message) {
  WireWriter writer(WireType::kPart, request);
  put_part(writer, message.part);
  return writer.put_bytes(message.bytes).finish();
}

std::vector<std::byte> encode_heartbeat(std::uint64_t request, const LeasesMessage& message) {
  return encode_leases(WireType::kHeartbeat, request, message);
}

std::vector<std::byte> encode_heartbeat_ack(std::uint64_t request, const LeasesMessage& message) {
  return encode_leases(WireType::kHeartbeatAck, request, message);
}

std::vector<std::byte> encode(std::uint64_t request, const ReleaseMessage& message) {
  return WireWriter(WireType::kRelease, request).put(message.lease).finish();
}

std::vector<std::byte> encode(std::uint64_t request, const ReadBlocksMessage& message) {
  WireWriter writer(WireType::kReadBlocks, request);
  writer.put(message.lease).put(static_cast<std::uint32_t>(message.blocks.size()));
  for (const std::uint32_t block : message.blocks) {
    writer.put(block);
  }
  return writer.finish();
}

std::vector<std::byte> encode(std::uint64_t request, const ErrorMessage& message) {
  const auto code = std::find(kErrorCodes.begin(), kErrorCodes.end(), message.code);
  const std::string_view text =
      std::string_view(message.text).substr(0, ErrorMessage::kMaxTextBytes);
  return WireWriter(WireType::kError, request)
      .put(static_cast<std::uint32_t>(code - kErrorCodes.begin()))
      .put_sized(std::as_bytes(std::span(text)))
      .finish();
}

Expected<HelloMessage> decode_hello(std::span<const std::byte> body) {
  WireReader reader(body);
  HelloMessage message;
  get_array(reader, message.nonce);
  message.config = get_config(reader);
  if (!reader.is_at_good_end()) {
    return malformed("hello");
  }
  return message;
}

Expected<HelloReplyMessage> decode_hello_reply(std::span<const std::byte> body) {
  WireReader reader(body);
  HelloReplyMessage message;
  get_array(reader, message.nonce);
  get_array(reader, message.proof);
  message.config = get_config(reader);
  if (!reader.is_at_good_end()) {
    return malformed("hello reply");
  }
  return message;
}

Expected<ConfirmMessage> decode_confirm(std::span<const std::byte> body) {
  WireReader reader(body);
  ConfirmMessage message;
  get_array(reader, message.proof);
  if (!reader.is_at_good_end()) {
    return malformed("confirm");
  }
  return message;
}

Expected<ReadyMessage> decode_ready(std::span<const std::byte> body) {
  WireReader reader(body);
  ReadyMessage message;
  message.lease_ms = reader.get<std::uint64_t>();
  message.memory_address = reader.get<std::uint64_t>();
  message.memory_bytes = reader.get<std::uint64_t>();
  message.shared_worker = copy_of(reader.get_sized(ReadyMessage::kMaxKeyBytes));
  message.shared_key = copy_of(reader.get_sized(ReadyMessage::kMaxKeyBytes));
  message.network_worker = copy_of(reader.get_sized(ReadyMessage::kMaxKeyBytes));
  message.network_key = copy_of(reader.get_sized(ReadyMessage::kMaxKeyBytes));
  if (!reader.is_at_good_end()) {
    return malformed("ready");
  }
  constexpr std::uint64_t kMaxLeaseMs = std::uint64_t{1} << 40U;
  if (message.lease_ms == 0 || message.lease_ms > kMaxLeaseMs) {
    return out_of_range("ready", "the lease in milliseconds", message.lease_ms, kMaxLeaseMs);
  }
  if (message.memory_bytes > ~message.memory_address) {
    return out_of_range("ready", "the size of the memory", message.memory_bytes,
                        ~message.memory_address);
  }
  return message;
}

Expected<FetchMessage> decode_fetch(std::span<const std::byte> body) {
  WireReader reader(body);
  FetchMessage message;
  get_array(reader, message.key.bytes);
  message.epoch = reader.get<std::uint64_t>();
  if (!reader.is_at_good_end()) {
    return malformed("fetch");
  }
  return message;
}

Expected<ManifestMessage> decode_manifest(std::span<const std::byte> body, const PeerConfig& config,
                                          std::uint64_t max_index_bytes) {
  WireReader reader(body);
  ManifestMessage message;
  message.lease = reader.get<std::uint64_t>();
  message.epoch = reader.get<std::uint64_t>();
  message.num_tokens = reader.get<std::uint32_t>();
  message.num_blocks = reader.get<std::uint32_t>();
  message.index_bytes = reader.get<std::uint64_t>();
  message.note_bytes = reader.get<std::uint32_t>();
  if (reader.get<std::uint32_t>() != 0 || !reader.is_at_good_end()) {
    return malformed("manifest");
  }
  if (message.num_tokens < 1 || message.num_tokens > config.max_tokens) {
    return out_of_range("manifest", "the number of tokens", message.num_tokens, config.max_tokens);
  }
  const std::uint64_t num_blocks =
      (std::uint64_t{message.num_tokens} + config.block_tokens - 1) / config.block_tokens;
  if (message.num_blocks != num_blocks) {
    return out_of_range("manifest", "the number of blocks", message.num_blocks, num_blocks);
  }
  const std::uint64_t index_bytes =
      num_blocks * config.num_layers * config.num_kv_heads * config.index_bytes;
  if ((message.index_bytes != 0 && message.index_bytes != index_bytes) ||
      message.index_bytes > max_index_bytes) {
    return out_of_range("manifest", "the key index in bytes", message.index_bytes,
                        std::min(index_bytes, max_index_bytes));
  }
  constexpr std::uint32_t kMaxNoteBytes = 1 << 22;
  if (message.note_bytes > kMaxNoteBytes) {
    return out_of_range("manifest", "the note in bytes", message.note_bytes, kMaxNoteBytes);
  }
  return message;
}

namespace {
FetchPartMessage get_part(WireReader& reader) {
  FetchPartMessage part;
  part.lease = reader.get<std::uint64_t>();
  part.section = static_cast<ManifestSection>(reader.get<std::uint32_t>());
  part.length = reader.get<std::uint32_t>();
  part.offset = reader.get<std::uint64_t>();
  return part;
}

std::optional<Status> check_part(std::string_view message, const FetchPartMessage& part) {
  const auto section = static_cast<std::uint32_t>(part.section);
  if (section < 1 || section > static_cast<std::uint32_t>(ManifestSection::kNote)) {
    return out_of_range(message, "the section", section,
                        static_cast<std::uint32_t>(ManifestSection::kNote))
        .value();
  }
  if (part.length < 1 || part.length > kPartBytes) {
    return out_of_range(message, "the length", part.length, kPartBytes).value();
  }
  return std::nullopt;
}
}  // namespace

Expected<FetchPartMessage> decode_fetch_part(std::span<const std::byte> body) {
  WireReader reader(body);
  const FetchPartMessage message = get_part(reader);
  if (!reader.is_at_good_end()) {
    return malformed("fetch part");
  }
  if (std::optional<Status> problem = check_part("fetch part", message)) {
    return fail(std::move(*problem));
  }
  return message;
}

Expected<PartMessage> decode_part(std::span<const std::byte> body) {
  WireReader reader(body);
  PartMessage message;
  message.part = get_part(reader);
  if (!reader.is_good() || reader.bytes_left() != message.part.length) {
    return malformed("part");
  }
  if (std::optional<Status> problem = check_part("part", message.part)) {
    return fail(std::move(*problem));
  }
  message.bytes = reader.get_bytes(message.part.length);
  return message;
}

Expected<LeasesMessage> decode_leases(std::span<const std::byte> body) {
  WireReader reader(body);
  LeasesMessage message;
  const auto count = reader.get<std::uint32_t>();
  if (count > kMaxHeartbeatLeases) {
    return out_of_range("heartbeat", "the number of leases", count, kMaxHeartbeatLeases);
  }
  if (!reader.is_good() || reader.bytes_left() != std::size_t{count} * sizeof(std::uint64_t)) {
    return malformed("heartbeat");
  }
  message.leases.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    message.leases.push_back(reader.get<std::uint64_t>());
  }
  return message;
}

Expected<ReleaseMessage> decode_release(std::span<const std::byte> body) {
  WireReader reader(body);
  const ReleaseMessage message{reader.get<std::uint64_t>()};
  if (!reader.is_at_good_end()) {
    return malformed("release");
  }
  return message;
}

Expected<ReadBlocksMessage> decode_read_blocks(std::span<const std::byte> body,
                                               const PeerConfig& config) {
  WireReader reader(body);
  ReadBlocksMessage message;
  message.lease = reader.get<std::uint64_t>();
  const auto count = reader.get<std::uint32_t>();
  if (count < 1 || count > blocks_per_message(config)) {
    return out_of_range("read blocks", "the number of blocks", count, blocks_per_message(config));
  }
  if (reader.bytes_left() != std::size_t{count} * sizeof(std::uint32_t)) {
    return malformed("read blocks");
  }
  message.blocks.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    message.blocks.push_back(reader.get<std::uint32_t>());
  }
  return message;
}

Expected<BlockDataMessage> decode_block_data(std::span<const std::byte> body,
                                             const PeerConfig& config) {
  WireReader reader(body);
  BlockDataMessage message;
  message.lease = reader.get<std::uint64_t>();
  message.num_blocks = reader.get<std::uint32_t>();
  if (reader.get<std::uint32_t>() != 0 || !reader.is_good()) {
    return malformed("block data");
  }
  if (message.num_blocks < 1 || message.num_blocks > blocks_per_message(config)) {
    return out_of_range("block data", "the number of blocks", message.num_blocks,
                        blocks_per_message(config));
  }
  if (reader.bytes_left() != message.num_blocks * wire_block_bytes(config)) {
    return malformed("block data");
  }
  message.bytes = reader.get_bytes(reader.bytes_left());
  return message;
}

Expected<ErrorMessage> decode_error(std::span<const std::byte> body) {
  WireReader reader(body);
  const auto code = reader.get<std::uint32_t>();
  const std::span<const std::byte> text = reader.get_sized(ErrorMessage::kMaxTextBytes);
  if (!reader.is_at_good_end()) {
    return malformed("error");
  }
  ErrorMessage message;
  message.code = code < kErrorCodes.size() ? kErrorCodes[code] : StatusCode::kInternal;
  std::transform(text.begin(), text.end(), std::back_inserter(message.text), [](std::byte byte) {
    const auto character = std::to_integer<unsigned char>(byte);
    return character >= 0x20 && character <= 0x7E ? static_cast<char>(character) : '?';
  });
  return message;
}

}  // namespace karez
