#include "engine/transfer_note.h"

#include <bit>
#include <cstring>

namespace karez {

static_assert(std::endian::native == std::endian::little, "numbers travel as they lie in memory");

std::vector<std::byte> encode_transfer_note(std::span<const float> logits,
                                            std::span<const std::uint32_t> working_set,
                                            std::size_t max_bytes) {
  if (logits.size_bytes() + working_set.size_bytes() > max_bytes) {
    working_set = {};
  }
  const auto first = std::as_bytes(logits);
  const auto second = std::as_bytes(working_set);
  std::vector<std::byte> note(first.begin(), first.end());
  note.insert(note.end(), second.begin(), second.end());
  return note;
}

TransferNote decode_transfer_note(std::span<const std::byte> note, std::size_t vocab_size) {
  const std::size_t logits_bytes = vocab_size * sizeof(float);
  TransferNote decoded;
  if (vocab_size == 0 || note.size() < logits_bytes ||
      (note.size() - logits_bytes) % sizeof(std::uint32_t) != 0) {
    return decoded;
  }
  decoded.logits.resize(vocab_size);
  std::memcpy(decoded.logits.data(), note.data(), logits_bytes);
  const std::span<const std::byte> places = note.subspan(logits_bytes);
  decoded.working_set.resize(places.size() / sizeof(std::uint32_t));
  if (!places.empty()) {
    std::memcpy(decoded.working_set.data(), places.data(), places.size());
  }
  return decoded;
}

}  // namespace karez
