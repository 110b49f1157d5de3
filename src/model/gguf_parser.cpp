#include <fmt/format.h>
#include <ggml.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>

#include "model/gguf_contents.h"

namespace karez {
namespace {

constexpr std::uint64_t kMaxKeyBytes = 65535;      // GGUF specification
constexpr std::uint64_t kMaxTensorNameBytes = 63;  // ggml keeps names in 64 bytes with the zero
constexpr std::uint64_t kMinEntryBytes = 14;       // key length 8, key 1, type 4, value 1
constexpr std::uint64_t kMinTensorInfoBytes = 33;  // name length 8, name 1, dims 4, dim 8, ...
constexpr std::uint32_t kDefaultAlignment = 32;    // GGUF specification
constexpr std::uint32_t kMinAlignment = 8;         // so that every tensor element is aligned
constexpr std::string_view kAlignmentKey = "general.alignment";

static_assert(std::endian::native == std::endian::little, "GGUF is read in place");

class Parser {
 public:
  Parser(std::span<const std::byte> bytes, std::string_view file) : bytes_(bytes), file_(file) {}

  Expected<GgufContents> parse() {
    std::uint64_t num_tensors = 0;
    std::uint64_t num_entries = 0;
    return parse_header(num_tensors, num_entries)
        .and_then([&] { return parse_entries(num_entries); })
        .and_then([&] { return parse_tensor_infos(num_tensors); })
        .and_then([&] { return place_tensors(); })
        .map([&] { return std::move(contents_); });
  }

 private:
  template <typename... Args>
  tl::unexpected<Status> corrupt(fmt::format_string<Args...> format, Args&&... args) const {
    return fail(StatusCode::kCorruption,
                fmt::format("{}: {}", file_, fmt::format(format, std::forward<Args>(args)...)));
  }

  std::uint64_t remaining() const { return bytes_.size() - position_; }

  template <typename T>
  std::optional<T> read() {
    if (remaining() < sizeof(T)) {
      return std::nullopt;
    }
    const T value = load_value<T>(bytes_.data() + position_);
    position_ += sizeof(T);
    return value;
  }

  std::span<const std::byte> take(std::uint64_t length) {
    const auto taken = bytes_.subspan(position_, length);
    position_ += length;
    return taken;
  }

  tl::unexpected<Status> truncated(std::string_view what) const {
    return corrupt("the file ends within {} (at byte {} of {})", what, position_, bytes_.size());
  }

  // `what` is called only for the message.
  template <typename What>
  Expected<std::string_view> read_string(What what) {
    const auto length = read<std::uint64_t>();
    if (!length) {
      return truncated(what());
    }
    if (*length > remaining()) {
      return corrupt("{}: the string length is {}, but only {} bytes of the file remain", what(),
                     *length, remaining());
    }
    const auto text = take(*length);
    return std::string_view(reinterpret_cast<const char*>(text.data()), text.size());
  }

  Expected<void> parse_header(std::uint64_t& num_tensors, std::uint64_t& num_entries) {
    if (bytes_.empty()) {
      return corrupt("the file is empty; a GGUF file starts with \"GGUF\"");
    }
    const auto magic = bytes_.first(std::min<std::size_t>(4, bytes_.size()));
    const std::string_view seen(reinterpret_cast<const char*>(magic.data()), magic.size());
    if (seen != "GGUF") {
      return corrupt("not a GGUF file: it starts with \"{}\", a GGUF file with \"GGUF\"",
                     printable(seen));
    }
    position_ = 4;
    const auto version = read<std::uint32_t>();
    if (!version) {
      return truncated("the GGUF header");
    }
    if ((*version & 0xFFFFU) == 0 && *version != 0) {
      return fail(
          StatusCode::kUnimplemented,
          fmt::format("{}: a big-endian GGUF file (version reads as {}); only little-endian "
                      "files are read, convert it with gguf_convert_endian.py",
                      file_, *version));
    }
    if (*version != 2 && *version != 3) {
      return fail(StatusCode::kUnimplemented,
                  fmt::format("{}: GGUF version {}; versions 2 and 3 are read, convert the model "
                              "again with a current converter",
                              file_, *version));
    }
    contents_.version = *version;
    const auto tensors = read<std::uint64_t>();
    const auto entries = read<std::uint64_t>();
    if (!tensors || !entries) {
      return truncated("the GGUF header");
    }
    if (*tensors > remaining() / kMinTensorInfoBytes) {
      return corrupt("the tensor count is {}, but the remaining {} bytes have room for {} at most",
                     *tensors, remaining(), remaining() / kMinTensorInfoBytes);
    }
    if (*entries > remaining() / kMinEntryBytes) {
      return corrupt("the key count is {}, but the remaining {} bytes have room for {} at most",
                     *entries, remaining(), remaining() / kMinEntryBytes);
    }
    num_tensors = *tensors;
    num_entries = *entries;
    return {};
  }

  Expected<void> parse_entries(std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto key = read_string([i] { return fmt::format("the name of key {}", i); });
      if (!key) {
        return fail(key.error());
      }
      if (key->empty() || key->size() > kMaxKeyBytes) {
        return corrupt("key {}: its name has {} bytes, allowed are 1 to {}", i, key->size(),
                       kMaxKeyBytes);
      }
      GgufEntry entry;
      entry.key = *key;
      if (auto value = parse_value(entry); !value) {
        return value;
      }
      contents_.entries.push_back(entry);
    }
    auto& order = contents_.entries_by_key;
    order.resize(contents_.entries.size());
    std::iota(order.begin(), order.end(), 0U);
    const auto name = [&](std::uint32_t i) { return contents_.entries[i].key; };
    std::ranges::sort(order, {}, name);
    const auto twin = std::ranges::adjacent_find(order, {}, name);
    if (twin != order.end()) {
      return corrupt("key \"{}\" is there twice", printable(name(*twin)));
    }
    return {};
  }

  Expected<void> parse_value(GgufEntry& entry) {
    const auto type = read<std::uint32_t>();
    if (!type) {
      return truncated(in_key(entry));
    }
    if (*type > static_cast<std::uint32_t>(GgufType::kF64)) {
      return corrupt("{} has the type number {}, allowed are 0 to 12", in_key(entry), *type);
    }
    entry.type = static_cast<GgufType>(*type);
    if (entry.type == GgufType::kArray) {
      return parse_array(entry);
    }
    const std::size_t start = position_;
    if (auto skipped = skip_elements(entry, entry.type); !skipped) {
      return skipped;
    }
    entry.value = bytes_.subspan(start, position_ - start);
    return {};
  }

  Expected<void> parse_array(GgufEntry& entry) {
    const auto type = read<std::uint32_t>();
    const auto length = read<std::uint64_t>();
    if (!type || !length) {
      return truncated(in_key(entry));
    }
    if (*type > static_cast<std::uint32_t>(GgufType::kF64)) {
      return corrupt("{}: the array's element type number is {}, allowed are 0 to 12",
                     in_key(entry), *type);
    }
    entry.element_type = static_cast<GgufType>(*type);
    entry.length = *length;
    if (entry.element_type == GgufType::kArray) {
      return corrupt("{} is an array of arrays, which GGUF readers do not take", in_key(entry));
    }
    const std::size_t start = position_;
    if (auto skipped = skip_elements(entry, entry.element_type); !skipped) {
      return skipped;
    }
    entry.value = bytes_.subspan(start, position_ - start);
    return {};
  }

  // Moves past entry.length elements, checking that they are complete.
  Expected<void> skip_elements(const GgufEntry& entry, GgufType type) {
    const std::uint64_t element_bytes =
        type == GgufType::kString ? sizeof(std::uint64_t) : gguf_scalar_bytes(type);
    if (entry.length > remaining() / element_bytes) {
      return corrupt("{}: {} element(s) of type {} do not fit into the remaining {} bytes",
                     in_key(entry), entry.length, to_string(type), remaining());
    }
    if (type == GgufType::kString) {
      for (std::uint64_t i = 0; i < entry.length; ++i) {
        const auto text = read_string([&] {
          return entry.type == GgufType::kArray ? fmt::format("{}[{}]", in_key(entry), i)
                                                : in_key(entry);
        });
        if (!text) {
          return fail(text.error());
        }
      }
      return {};
    }
    const auto elements = take(entry.length * element_bytes);
    if (type == GgufType::kBool) {
      for (const std::byte value : elements) {
        if (value > std::byte{1}) {
          return corrupt("{}: a bool is {}, allowed are 0 and 1", in_key(entry),
                         std::to_integer<int>(value));
        }
      }
    }
    return {};
  }

  static std::string in_key(const GgufEntry& entry) {
    return fmt::format("key \"{}\"", printable(entry.key));
  }
  static std::string in_tensor(const GgufTensor& tensor) {
    return fmt::format("tensor \"{}\"", printable(tensor.name));
  }

  Expected<void> parse_tensor_infos(std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto name = read_string([i] { return fmt::format("the name of tensor {}", i); });
      if (!name) {
        return fail(name.error());
      }
      if (name->empty() || name->size() > kMaxTensorNameBytes) {
        return corrupt("tensor {}: its name has {} bytes, allowed are 1 to {}", i, name->size(),
                       kMaxTensorNameBytes);
      }
      GgufTensor tensor;
      tensor.name = *name;
      if (auto info = parse_tensor_info(tensor); !info) {
        return info;
      }
      contents_.tensors.push_back(std::move(tensor));
    }
    auto& order = contents_.tensors_by_name;
    order.resize(contents_.tensors.size());
    std::iota(order.begin(), order.end(), 0U);
    const auto name = [&](std::uint32_t i) { return contents_.tensors[i].name; };
    std::ranges::sort(order, {}, name);
    const auto twin = std::ranges::adjacent_find(order, {}, name);
    if (twin != order.end()) {
      return corrupt("tensor \"{}\" is there twice", printable(name(*twin)));
    }
    return {};
  }

  // Shape, type, size and offset. The place of the data is not known before the last info is read.
  Expected<void> parse_tensor_info(GgufTensor& tensor) {
    const auto num_dims = read<std::uint32_t>();
    if (!num_dims) {
      return truncated(in_tensor(tensor));
    }
    if (*num_dims < 1 || *num_dims > GGML_MAX_DIMS) {
      return corrupt("{} has {} dimensions, allowed are 1 to {}", in_tensor(tensor), *num_dims,
                     GGML_MAX_DIMS);
    }
    std::int64_t num_elements = 1;
    for (std::uint32_t d = 0; d < *num_dims; ++d) {
      const auto dim = read<std::uint64_t>();
      if (!dim) {
        return truncated(in_tensor(tensor));
      }
      const auto max = std::numeric_limits<std::int64_t>::max() / num_elements;
      if (*dim < 1 || *dim > static_cast<std::uint64_t>(max)) {
        return corrupt("{}: dimension {} is {}, allowed are 1 to {}", in_tensor(tensor), d, *dim,
                       max);
      }
      tensor.shape.push_back(static_cast<std::int64_t>(*dim));
      num_elements *= tensor.shape.back();
    }
    const auto type = read<std::uint32_t>();
    const auto offset = read<std::uint64_t>();
    if (!type || !offset) {
      return truncated(in_tensor(tensor));
    }
    // Types that ggml has removed keep their number and have size 0.
    if (*type >= GGML_TYPE_COUNT || ggml_type_size(static_cast<ggml_type>(*type)) == 0 ||
        ggml_blck_size(static_cast<ggml_type>(*type)) <= 0) {
      return corrupt("{} has the type number {}, which ggml does not know (numbers below {})",
                     in_tensor(tensor), *type, static_cast<int>(GGML_TYPE_COUNT));
    }
    tensor.type = *type;
    const auto ggml_tensor_type = static_cast<ggml_type>(*type);
    const std::int64_t block_size = ggml_blck_size(ggml_tensor_type);
    if (tensor.shape[0] % block_size != 0) {
      return corrupt("{}: dimension 0 is {}, type {} allows multiples of {}", in_tensor(tensor),
                     tensor.shape[0], ggml_type_name(ggml_tensor_type), block_size);
    }
    const auto num_blocks = static_cast<std::uint64_t>(num_elements / block_size);
    const std::uint64_t block_bytes = ggml_type_size(ggml_tensor_type);
    if (num_blocks > bytes_.size() / block_bytes) {
      return corrupt("{}: {} elements of type {} are more than the file's {} bytes",
                     in_tensor(tensor), num_elements, ggml_type_name(ggml_tensor_type),
                     bytes_.size());
    }
    places_.push_back({*offset, num_blocks * block_bytes});
    return {};
  }

  Expected<void> place_tensors() {
    std::uint32_t alignment = kDefaultAlignment;
    if (const GgufEntry* entry = contents_.find_entry(kAlignmentKey)) {
      if (entry->type != GgufType::kU32) {
        return corrupt("key \"{}\" has type {}, allowed is u32", kAlignmentKey,
                       to_string(entry->type));
      }
      alignment = load_value<std::uint32_t>(entry->value.data());
      if (alignment < kMinAlignment || !std::has_single_bit(alignment)) {
        return corrupt("key \"{}\" is {}, allowed are powers of two from {}", kAlignmentKey,
                       alignment, kMinAlignment);
      }
    }
    if (contents_.tensors.empty()) {
      return {};
    }
    const std::uint64_t data_start = (position_ + alignment - 1) / alignment * alignment;
    if (data_start > bytes_.size()) {
      return corrupt("the tensor data starts at byte {}, but the file has {} bytes", data_start,
                     bytes_.size());
    }
    const auto data = bytes_.subspan(data_start);
    for (std::size_t i = 0; i < places_.size(); ++i) {
      GgufTensor& tensor = contents_.tensors[i];
      const Place& place = places_[i];
      if (place.offset % alignment != 0) {
        return corrupt("{}: its offset is {}, allowed are multiples of {}", in_tensor(tensor),
                       place.offset, alignment);
      }
      if (place.offset > data.size() || place.num_bytes > data.size() - place.offset) {
        return corrupt("{}: its {} bytes at offset {} end past the file's {} bytes of tensor data",
                       in_tensor(tensor), place.num_bytes, place.offset, data.size());
      }
      tensor.data = data.subspan(place.offset, place.num_bytes);
    }
    return check_overlaps();
  }

  Expected<void> check_overlaps() {
    std::vector<std::uint32_t> order(places_.size());
    std::iota(order.begin(), order.end(), 0U);
    std::ranges::sort(order, {}, [&](std::uint32_t i) { return places_[i].offset; });
    for (std::size_t i = 1; i < order.size(); ++i) {
      const Place& before = places_[order[i - 1]];
      if (before.offset + before.num_bytes > places_[order[i]].offset) {
        return corrupt("{} (offset {}) overlaps {} (offset {}, {} bytes)",
                       in_tensor(contents_.tensors[order[i]]), places_[order[i]].offset,
                       in_tensor(contents_.tensors[order[i - 1]]), before.offset, before.num_bytes);
      }
    }
    return {};
  }

  struct Place {
    std::uint64_t offset;  // from the start of the tensor data
    std::uint64_t num_bytes;
  };

  std::span<const std::byte> bytes_;
  std::string_view file_;
  std::size_t position_ = 0;
  GgufContents contents_;
  std::vector<Place> places_;  // of contents_.tensors
};

}  // namespace

Expected<GgufContents> parse_gguf(std::span<const std::byte> bytes, std::string_view name) {
  return Parser(bytes, name).parse();
}

}  // namespace karez
