// Writes GGUF files for tests: good ones, and by patching the bytes afterwards, damaged ones.
//
// Does not use ggml or gguf, so that it can write what they refuse to write.
// Thread: one.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "model/gguf_file.h"

namespace karez::test {

// A finished file and where its fields lie, for patches.
struct GgufImage {
  struct KeyPlace {
    std::size_t entry = 0;  // the length of the key's name
    std::size_t type = 0;
    std::size_t value = 0;  // of an array: the element type; its length is 4 bytes behind
    std::size_t end = 0;
  };
  struct TensorPlace {
    std::size_t entry = 0;  // the length of the tensor's name
    std::size_t num_dims = 0;
    std::size_t dims = 0;
    std::size_t type = 0;
    std::size_t offset = 0;
  };
  static constexpr std::size_t kVersion = 4;
  static constexpr std::size_t kTensorCount = 8;
  static constexpr std::size_t kKeyCount = 16;

  std::vector<std::byte> bytes;
  std::map<std::string, KeyPlace> keys;
  std::map<std::string, TensorPlace> tensors;
  std::size_t data = 0;  // start of the tensor data

  template <typename T>
  void patch(std::size_t at, T value) {
    std::memcpy(bytes.data() + at, &value, sizeof(value));
  }
};

template <typename T>
concept GgufScalar = std::is_arithmetic_v<T>;

template <GgufScalar T>
constexpr GgufType gguf_type_of() {
  if constexpr (std::same_as<T, bool>) {
    return GgufType::kBool;
  } else if constexpr (std::same_as<T, float>) {
    return GgufType::kF32;
  } else if constexpr (std::same_as<T, double>) {
    return GgufType::kF64;
  } else if constexpr (std::is_signed_v<T>) {
    return sizeof(T) == 1   ? GgufType::kI8
           : sizeof(T) == 2 ? GgufType::kI16
           : sizeof(T) == 4 ? GgufType::kI32
                            : GgufType::kI64;
  } else {
    return sizeof(T) == 1   ? GgufType::kU8
           : sizeof(T) == 2 ? GgufType::kU16
           : sizeof(T) == 4 ? GgufType::kU32
                            : GgufType::kU64;
  }
}

class GgufWriter {
 public:
  std::uint32_t version = 3;
  std::uint32_t alignment = 32;  // of the tensor data; set the key general.alignment to match

  // A second set() of a key replaces its value. The type written is the C++ type's.
  template <GgufScalar T>
  void set(const std::string& key, T value) {
    put(key, gguf_type_of<T>(), raw(value));
  }
  void set(const std::string& key, std::string_view text);
  void set(const std::string& key, const char* text) { set(key, std::string_view(text)); }
  template <GgufScalar T>
  void set_array(const std::string& key, const std::vector<T>& values) {
    std::vector<std::byte> payload;
    for (const T value : values) {
      append(payload, raw(value));
    }
    put_array(key, gguf_type_of<T>(), values.size(), payload);
  }
  void set_array(const std::string& key, const std::vector<std::string>& texts);
  void remove(const std::string& key);
  bool has(const std::string& key) const;
  std::vector<std::string> keys() const;

  // shape: innermost dimension first. `type` is a ggml type number; `data` is copied.
  void add_tensor(const std::string& name, std::uint32_t type,
                  const std::vector<std::int64_t>& shape, std::span<const std::byte> data);

  GgufImage build() const;
  void write(const std::string& path) const;  // throws std::runtime_error

 private:
  struct Key {
    std::string name;
    GgufType type;
    std::vector<std::byte> value;  // of an array with its element type and length
  };
  struct Tensor {
    std::string name;
    std::uint32_t type;
    std::vector<std::int64_t> shape;
    std::vector<std::byte> data;
  };

  template <typename T>
  static std::vector<std::byte> raw(T value) {
    std::vector<std::byte> bytes(sizeof(T));
    std::memcpy(bytes.data(), &value, sizeof(T));
    return bytes;
  }
  static void append(std::vector<std::byte>& to, std::span<const std::byte> bytes) {
    to.insert(to.end(), bytes.begin(), bytes.end());
  }
  static void append_text(std::vector<std::byte>& to, std::string_view text);
  void put(const std::string& key, GgufType type, std::vector<std::byte> value);
  void put_array(const std::string& key, GgufType type, std::size_t length,
                 std::span<const std::byte> payload);

  std::vector<Key> keys_;
  std::vector<Tensor> tensors_;
};

void write_file(const std::string& path, std::span<const std::byte> bytes);

}  // namespace karez::test
