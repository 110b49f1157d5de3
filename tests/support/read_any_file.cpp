#include "support/read_any_file.h"

#include <cstdint>
#include <string>

#include "base/check.h"
#include "model/gguf_file.h"
#include "model/model_config.h"
#include "model/tokenizer_metadata.h"

namespace karez::test {
namespace {

constexpr const char* kName = "input.gguf";
constexpr std::size_t kMaxArrayLength = 1 << 16;

// Failures are as good as values, but must be proper messages.
template <typename T>
bool inspect(const Expected<T>& result) {
  if (!result) {
    const std::string& message = result.error().message();
    KAREZ_CHECK(message.starts_with(std::string(kName) + ": "), message);
    KAREZ_CHECK(message.find('\n') == std::string::npos, message);
    KAREZ_CHECK(result.error().code() != StatusCode::kInternal, message);
  }
  return result.has_value();
}

bool in_file(const GgufFile& file, std::span<const std::byte> part) {
  const std::byte* start = file.bytes().data();
  return part.data() >= start && part.data() + part.size() <= start + file.bytes().size();
}

void read_keys(const GgufFile& file) {
  for (const std::string_view key : file.keys()) {
    KAREZ_CHECK(file.has(key), "a listed key is there");
    KAREZ_CHECK(!to_string(file.type(key)).empty(), "a type has a name");
    inspect(file.get_int(key));
    inspect(file.get_float(key));
    inspect(file.get_bool(key));
    inspect(file.get_string(key));
    inspect(file.array_info(key));
    inspect(file.get_int_array(key, kMaxArrayLength));
    const auto texts = file.get_string_array(key);
    if (inspect(texts)) {
      for (const std::string_view text : *texts) {
        KAREZ_CHECK(in_file(file, std::as_bytes(std::span(text))), "a text lies in the file");
      }
    }
  }
}

void read_tensors(const GgufFile& file) {
  for (const GgufTensor& tensor : file.tensors()) {
    KAREZ_CHECK(file.find_tensor(tensor.name) == &tensor, "a listed tensor is found");
    KAREZ_CHECK(!tensor.data.empty(), "a tensor has bytes");
    KAREZ_CHECK(in_file(file, tensor.data), "a tensor lies in the file");
    file.drop_pages(tensor.data);
  }
}

}  // namespace

bool read_any_file(std::span<const std::byte> bytes) {
  const auto file = GgufFile::parse(bytes, kName);
  if (!inspect(file)) {
    return false;
  }
  read_keys(*file);
  read_tensors(*file);
  const bool has_config = inspect(read_model_config(*file));
  return inspect(check_tokenizer_metadata(*file)) && has_config;
}

}  // namespace karez::test
