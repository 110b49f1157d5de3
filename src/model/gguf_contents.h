// What the GGUF parser finds in the bytes of a file. GgufFile is the public face of it.
//
// Thread: a value. Views point into the parsed bytes and live as long as those.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/gguf_file.h"

namespace karez {

// From bytes of any alignment.
template <typename T>
T load_value(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

struct GgufEntry {
  std::string_view key;
  GgufType type = GgufType::kU8;
  GgufType element_type = GgufType::kU8;  // arrays only
  std::uint64_t length = 1;               // elements of an array
  std::span<const std::byte> value;       // as in the file; checked to be complete
};

struct GgufContents {
  std::uint32_t version = 0;
  std::vector<GgufEntry> entries;             // in file order
  std::vector<std::uint32_t> entries_by_key;  // indices into entries, ascending by key
  std::vector<GgufTensor> tensors;            // in file order
  std::vector<std::uint32_t> tensors_by_name;

  const GgufEntry* find_entry(std::string_view key) const;
  const GgufTensor* find_tensor(std::string_view name) const;
};

// `name` is the file's name for messages. Memory: at most proportional to bytes.size().
// Fails: kCorruption, kUnimplemented as GgufFile::open().
Expected<GgufContents> parse_gguf(std::span<const std::byte> bytes, std::string_view name);

// Bytes of one element in an array or of a scalar; 0 for strings and arrays.
std::size_t gguf_scalar_bytes(GgufType type);

// Text from a file for a message: at most 80 bytes, control and non-ASCII bytes as \xNN.
std::string printable(std::string_view text);

}  // namespace karez
