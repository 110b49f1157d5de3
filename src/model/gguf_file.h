// A GGUF model file, mapped read-only: its metadata and where its tensors lie.
//
// Reads versions 2 and 3, little-endian. Every count, length, type, shape and offset is checked
// against the size of the file before anything is allocated or touched, so a malformed file costs
// an error message and no memory. ggml and libllama see only files that have passed these checks.
// Values are views into the mapping; nothing is copied.
//
// Format: the GGUF specification of the ggml project.
// Thread: immutable after open().
// Owns: the mapping. Views and spans that it hands out die with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace karez {

enum class GgufType : std::uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

std::string_view to_string(GgufType type);

struct GgufTensor {
  std::string_view name;   // 1 to 63 bytes, unique in the file
  std::uint32_t type = 0;  // a ggml_type that this ggml knows
  std::vector<std::int64_t>
      shape;  // ggml order: innermost dimension first; 1 to 4 entries, each > 0
  std::span<const std::byte> data;  // in the mapping; exactly the bytes of the shape
};

class GgufFile {
 public:
  // Fails, with a message that names the file, the key or tensor, and the value:
  //   kNotFound: no such file; kIoError: cannot be read; kCorruption: malformed;
  //   kUnimplemented: a version or byte order that is not read.
  static Expected<GgufFile> open(const std::string& path);
  // The same for a file that is already in memory (tests and fuzzing). `bytes` must outlive it.
  static Expected<GgufFile> parse(std::span<const std::byte> bytes, std::string name);

  GgufFile(GgufFile&&) noexcept;
  GgufFile& operator=(GgufFile&&) noexcept;
  ~GgufFile();

  const std::string& path() const;
  std::uint32_t version() const;
  std::span<const std::byte> bytes() const;

  bool has(std::string_view key) const;
  std::vector<std::string_view> keys() const;  // in file order
  // The key's type as written. Requires: has(key).
  GgufType type(std::string_view key) const;

  // Scalars. Any integer type converts to integers if the value fits, any float to double.
  // Fails: kNotFound without the key, kCorruption for another type or a value that does not fit.
  Expected<std::int64_t> get_int(std::string_view key) const;
  Expected<double> get_float(std::string_view key) const;
  Expected<bool> get_bool(std::string_view key) const;
  Expected<std::string_view> get_string(std::string_view key) const;

  // Arrays: element type and length. Fails as the scalars do.
  struct ArrayInfo {
    GgufType element_type;
    std::uint64_t length;
  };
  Expected<ArrayInfo> array_info(std::string_view key) const;
  // An array of any integer or bool type. Fails also if it is longer than max_length.
  Expected<std::vector<std::int64_t>> get_int_array(std::string_view key,
                                                    std::size_t max_length) const;
  // An array of strings: one view of 16 bytes for each, which takes 8 bytes of the file at least.
  Expected<std::vector<std::string_view>> get_string_array(std::string_view key) const;

  std::span<const GgufTensor> tensors() const;
  // nullptr without such a tensor.
  const GgufTensor* find_tensor(std::string_view name) const;

  // Lets the system take back the memory of the mapping's pages; they are read again when touched.
  // Without effect on a file made by parse().
  void drop_pages(std::span<const std::byte> range) const;

 private:
  struct Impl;
  explicit GgufFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace karez
