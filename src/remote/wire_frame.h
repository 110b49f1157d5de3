// The frame around every message between nodes, and reading and writing its fields. Little-endian.
//
//   0  u32  magic "KRZW"        16  u64  request: an answer has its question's
//   4  u16  version             24  u64  XXH3-64 of the body, seeded with that of bytes 0 to 23
//   6  u16  type                32       body
//   8  u32  body bytes
//   12 u32  zero
//
// docs/formats.md has the bodies. Nothing is allocated for a length that the bytes do not bear out.
// Thread: values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace karez {

inline constexpr std::uint16_t kWireVersion = 1;
inline constexpr std::size_t kWireHeaderBytes = 32;
inline constexpr std::size_t kMaxWireBodyBytes = (std::size_t{1} << 20U) + 4096;

enum class WireType : std::uint16_t {
  kError = 1,  // has this form in every version
  kHello = 2,
  kHelloReply = 3,
  kConfirm = 4,
  kReady = 5,
  kFetch = 6,
  kManifest = 7,
  kFetchPart = 8,
  kPart = 9,
  kHeartbeat = 10,
  kHeartbeatAck = 11,
  kRelease = 12,
  kReadBlocks = 13,
  kBlockData = 14,
};

struct WireFrame {
  WireType type = WireType::kError;
  std::uint64_t request = 0;
  std::span<const std::byte> body;  // of the bytes that were read
};

// How long the frame is that begins here, as its header says; nullopt: the header is not complete.
// Fails: kCorruption if nothing that begins so can be a frame.
Expected<std::optional<std::size_t>> frame_size(std::span<const std::byte> bytes);

// Fails: kCorruption saying what is wrong; kInvalidArgument for another version, naming both.
Expected<WireFrame> read_frame(std::span<const std::byte> bytes);

class WireWriter {
 public:
  WireWriter(WireType type, std::uint64_t request);

  template <typename Integer>
  WireWriter& put(Integer value) {
    for (std::size_t i = 0; i < sizeof(Integer); ++i) {
      bytes_.push_back(static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i)));
    }
    return *this;
  }
  WireWriter& put_bytes(std::span<const std::byte> bytes);
  // u32 length, then the bytes.
  WireWriter& put_sized(std::span<const std::byte> bytes);
  // Room for bytes that are written in place; valid until the next call.
  std::span<std::byte> put_room(std::size_t size);
  // The whole frame.
  std::vector<std::byte> finish();

 private:
  std::vector<std::byte> bytes_;
};

// Reads past the end give zeros and make it bad, for good.
class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> body) : rest_(body) {}

  template <typename Integer>
  Integer get() {
    std::uint64_t value = 0;
    const std::span<const std::byte> bytes = get_bytes(sizeof(Integer));
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
    }
    return static_cast<Integer>(value);
  }
  // Empty if there are not so many.
  std::span<const std::byte> get_bytes(std::size_t size);
  // u32 length, then the bytes; more than `limit` is bad.
  std::span<const std::byte> get_sized(std::size_t limit);
  std::size_t bytes_left() const { return rest_.size(); }
  void set_bad() { is_good_ = false; }
  bool is_good() const { return is_good_; }
  bool is_at_good_end() const { return is_good_ && rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
  bool is_good_ = true;
};

}  // namespace karez
