#include "model/model_digest.h"

#include <algorithm>
#include <cstddef>
#include <span>

namespace karez {

Sha256Digest model_digest(const GgufFile& file) {
  constexpr std::size_t kPieces = 16;
  constexpr std::size_t kPieceBytes = 4096;
  const std::span<const std::byte> bytes = file.bytes();
  const std::byte* first_data = bytes.data() + bytes.size();
  for (const GgufTensor& tensor : file.tensors()) {
    first_data = std::min(first_data, tensor.data.data());
  }
  Sha256 hash;
  hash.add_text("karez model");
  hash.add_number(bytes.size());
  hash.add(bytes.first(static_cast<std::size_t>(first_data - bytes.data())));
  for (const GgufTensor& tensor : file.tensors()) {
    const std::span<const std::byte> data = tensor.data;
    hash.add_text(tensor.name);
    if (data.size() <= kPieces * kPieceBytes) {
      hash.add(data);
      continue;
    }
    for (std::size_t i = 0; i < kPieces; ++i) {
      const std::size_t at = (data.size() - kPieceBytes) / (kPieces - 1) * i;
      hash.add(data.subspan(i + 1 == kPieces ? data.size() - kPieceBytes : at, kPieceBytes));
    }
  }
  return hash.finish();
}

}  // namespace karez
