#include "support/dequantised_copy.h"

#include <ggml.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "model/gguf_file.h"

namespace karez::test {
namespace {

template <typename T>
void append(std::vector<char>& out, T value) {
  const std::size_t at = out.size();
  out.resize(at + sizeof(T));
  std::memcpy(out.data() + at, &value, sizeof(T));
}

std::size_t round_up(std::size_t value, std::size_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

std::size_t num_values(const GgufTensor& tensor) {
  std::size_t count = 1;
  for (const std::int64_t extent : tensor.shape) {
    count *= static_cast<std::size_t>(extent);
  }
  return count;
}

std::vector<float> values(const GgufTensor& tensor) {
  std::vector<float> result(num_values(tensor));
  const auto type = static_cast<ggml_type>(tensor.type);
  if (type == GGML_TYPE_F32) {
    std::memcpy(result.data(), tensor.data.data(), tensor.data.size());
  } else {
    ggml_get_type_traits(type)->to_float(tensor.data.data(), result.data(),
                                         static_cast<std::int64_t>(result.size()));
  }
  return result;
}

}  // namespace

void write_dequantised_copy(const std::string& from, const std::string& to) {
  const auto file = GgufFile::open(from);
  if (!file) {
    throw std::runtime_error(file.error().to_string());
  }
  const auto tensors = file->tensors();
  const auto alignment =
      static_cast<std::size_t>(file->get_int("general.alignment").value_or(std::int64_t{32}));
  // Counts and keys stay as they are: all bytes before the first tensor's name and its length.
  const auto* begin = reinterpret_cast<const char*>(file->bytes().data());
  const char* first_tensor = tensors.front().name.data() - sizeof(std::uint64_t);
  std::vector<char> head(begin, first_tensor);

  std::size_t offset = 0;
  for (const GgufTensor& tensor : tensors) {
    append(head, static_cast<std::uint64_t>(tensor.name.size()));
    head.insert(head.end(), tensor.name.begin(), tensor.name.end());
    append(head, static_cast<std::uint32_t>(tensor.shape.size()));
    for (const std::int64_t extent : tensor.shape) {
      append(head, static_cast<std::uint64_t>(extent));
    }
    append(head, static_cast<std::uint32_t>(GGML_TYPE_F32));
    append(head, static_cast<std::uint64_t>(offset));
    offset += round_up(num_values(tensor) * sizeof(float), alignment);
  }
  head.resize(round_up(head.size(), alignment), 0);

  std::ofstream out(to, std::ios::binary);
  out.write(head.data(), static_cast<std::streamsize>(head.size()));
  for (const GgufTensor& tensor : tensors) {
    const std::vector<float> data = values(tensor);
    const std::size_t bytes = data.size() * sizeof(float);
    out.write(reinterpret_cast<const char*>(data.data()), static_cast<std::streamsize>(bytes));
    const std::vector<char> padding(round_up(bytes, alignment) - bytes, 0);
    out.write(padding.data(), static_cast<std::streamsize>(padding.size()));
  }
  if (!out.flush()) {
    throw std::runtime_error(to + ": cannot be written");
  }
}

}  // namespace karez::test
