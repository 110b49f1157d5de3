#include "remote/wire_frame.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "base/check.h"

namespace karez {

namespace {

constexpr std::uint32_t kMagic = 0x575A524BU;  // "KRZW"
constexpr std::size_t kLengthOffset = 8;
constexpr std::size_t kChecksumOffset = 24;

std::uint64_t frame_checksum(std::span<const std::byte> frame) {
  const std::uint64_t seed = XXH3_64bits(frame.data(), kChecksumOffset);
  return XXH3_64bits_withSeed(frame.data() + kWireHeaderBytes, frame.size() - kWireHeaderBytes,
                              seed);
}

void store(std::span<std::byte> to, std::uint64_t value) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    to[i] = static_cast<std::byte>(value >> (8 * i));
  }
}

}  // namespace

Expected<std::optional<std::size_t>> frame_size(std::span<const std::byte> bytes) {
  WireReader header(bytes.first(std::min(bytes.size(), kWireHeaderBytes)));
  const auto magic = header.get<std::uint32_t>();
  if (header.is_good() && magic != kMagic) {
    return fail(StatusCode::kCorruption,
                fmt::format("a message begins with {:08x}, expected is {:08x}", magic, kMagic));
  }
  header.get<std::uint32_t>();
  const auto length = header.get<std::uint32_t>();
  if (length > kMaxWireBodyBytes) {
    return fail(StatusCode::kCorruption,
                fmt::format("a message says that its body has {} bytes, allowed are {}", length,
                            kMaxWireBodyBytes));
  }
  if (!header.is_good()) {
    return std::nullopt;
  }
  return kWireHeaderBytes + length;
}

Expected<WireFrame> read_frame(std::span<const std::byte> bytes) {
  if (bytes.size() < kWireHeaderBytes) {
    return fail(StatusCode::kCorruption,
                fmt::format("a message has {} bytes, its header alone has {}", bytes.size(),
                            kWireHeaderBytes));
  }
  WireReader header(bytes.first(kWireHeaderBytes));
  const auto magic = header.get<std::uint32_t>();
  const auto version = header.get<std::uint16_t>();
  const auto type = header.get<std::uint16_t>();
  const auto length = header.get<std::uint32_t>();
  const auto zero = header.get<std::uint32_t>();
  const auto request = header.get<std::uint64_t>();
  const auto checksum = header.get<std::uint64_t>();
  if (magic != kMagic) {
    return fail(StatusCode::kCorruption,
                fmt::format("a message begins with {:08x}, expected is {:08x}", magic, kMagic));
  }
  if (version != kWireVersion && type != static_cast<std::uint16_t>(WireType::kError)) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("peers do not fit: the wire version is {} here and {} there",
                            kWireVersion, version));
  }
  if (length > kMaxWireBodyBytes || length != bytes.size() - kWireHeaderBytes) {
    return fail(StatusCode::kCorruption,
                fmt::format("a message says that its body has {} bytes, {} came, allowed are {}",
                            length, bytes.size() - kWireHeaderBytes, kMaxWireBodyBytes));
  }
  if (zero != 0) {
    return fail(StatusCode::kCorruption,
                fmt::format("a reserved field of a message is {}, expected is 0", zero));
  }
  if (checksum != frame_checksum(bytes)) {
    return fail(StatusCode::kCorruption, "the checksum of a message does not fit its bytes");
  }
  return WireFrame{static_cast<WireType>(type), request, bytes.subspan(kWireHeaderBytes)};
}

WireWriter::WireWriter(WireType type, std::uint64_t request) {
  put(kMagic);
  put(kWireVersion);
  put(static_cast<std::uint16_t>(type));
  put(std::uint32_t{0});
  put(std::uint32_t{0});
  put(request);
  put(std::uint64_t{0});
}

WireWriter& WireWriter::put_bytes(std::span<const std::byte> bytes) {
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  return *this;
}

WireWriter& WireWriter::put_sized(std::span<const std::byte> bytes) {
  put(static_cast<std::uint32_t>(bytes.size()));
  return put_bytes(bytes);
}

std::span<std::byte> WireWriter::put_room(std::size_t size) {
  const std::size_t at = bytes_.size();
  bytes_.resize(at + size);
  return std::span(bytes_).subspan(at);
}

std::vector<std::byte> WireWriter::finish() {
  const std::size_t length = bytes_.size() - kWireHeaderBytes;
  KAREZ_CHECK(length <= kMaxWireBodyBytes, "a message of ours is within the limit");
  store(std::span(bytes_).subspan(kLengthOffset, 4), length);
  store(std::span(bytes_).subspan(kChecksumOffset, 8), frame_checksum(bytes_));
  return std::move(bytes_);
}

std::span<const std::byte> WireReader::get_bytes(std::size_t size) {
  if (!is_good_ || size > rest_.size()) {
    is_good_ = false;
    return {};
  }
  const std::span<const std::byte> bytes = rest_.first(size);
  rest_ = rest_.subspan(size);
  return bytes;
}

std::span<const std::byte> WireReader::get_sized(std::size_t limit) {
  const auto size = get<std::uint32_t>();
  if (size > limit) {
    is_good_ = false;
    return {};
  }
  return get_bytes(size);
}

}  // namespace karez
