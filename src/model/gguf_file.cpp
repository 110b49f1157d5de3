#include "model/gguf_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "base/check.h"
#include "model/gguf_contents.h"

namespace karez {
namespace {

// A read-only mapping of a whole file; empty if the bytes belong to somebody else.
class Mapping {
 public:
  Mapping() = default;
  explicit Mapping(std::span<const std::byte> bytes) : bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (!bytes_.empty()) {
      munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
    }
  }

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

Expected<Mapping> map_file(const std::string& path) {
  // O_NONBLOCK: opening a named pipe must not wait for a writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    const int error = errno;
    const bool missing = error == ENOENT || error == ENOTDIR;
    return fail(missing ? StatusCode::kNotFound : StatusCode::kIoError,
                missing ? fmt::format("{}: no such file", path)
                        : fmt::format("{}: cannot be opened: {}", path, std::strerror(error)));
  }
  struct Closer {
    int descriptor;
    ~Closer() { ::close(descriptor); }
  } closer{descriptor};

  struct stat info {};
  if (fstat(descriptor, &info) != 0) {
    return fail(StatusCode::kIoError, fmt::format("{}: {}", path, std::strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) {
    return fail(StatusCode::kIoError,
                fmt::format("{}: {}, but a model is a regular file", path,
                            S_ISDIR(info.st_mode) ? "is a directory" : "is a device or pipe"));
  }
  if (info.st_size == 0) {
    return Mapping();  // the parser says what is wrong with an empty file
  }
  const auto size = static_cast<std::size_t>(info.st_size);
  void* start = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (start == MAP_FAILED) {
    return fail(StatusCode::kIoError,
                fmt::format("{}: cannot be mapped: {}", path, std::strerror(errno)));
  }
  return Mapping({static_cast<const std::byte*>(start), size});
}

template <typename T>
std::optional<std::int64_t> load_int(const std::byte* from) {
  const T value = load_value<T>(from);
  if (!std::in_range<std::int64_t>(value)) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(value);
}

// Empty: not an integer type, or a u64 beyond int64.
std::optional<std::int64_t> load_integer(GgufType type, const std::byte* from) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kBool:
      return load_int<std::uint8_t>(from);
    case GgufType::kI8:
      return load_int<std::int8_t>(from);
    case GgufType::kU16:
      return load_int<std::uint16_t>(from);
    case GgufType::kI16:
      return load_int<std::int16_t>(from);
    case GgufType::kU32:
      return load_int<std::uint32_t>(from);
    case GgufType::kI32:
      return load_int<std::int32_t>(from);
    case GgufType::kU64:
      return load_int<std::uint64_t>(from);
    case GgufType::kI64:
      return load_int<std::int64_t>(from);
    case GgufType::kF32:
    case GgufType::kF64:
    case GgufType::kString:
    case GgufType::kArray:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

struct GgufFile::Impl {
  std::string path;
  Mapping mapping;
  std::span<const std::byte> bytes;
  GgufContents contents;

  Expected<const GgufEntry*> find(std::string_view key) const {
    const GgufEntry* entry = contents.find_entry(key);
    if (entry == nullptr) {
      return fail(StatusCode::kNotFound, fmt::format("{}: key \"{}\" is missing", path, key));
    }
    return entry;
  }

  tl::unexpected<Status> wrong_type(const GgufEntry& entry, std::string_view allowed) const {
    const std::string seen = entry.type == GgufType::kArray
                                 ? fmt::format("array of {}", to_string(entry.element_type))
                                 : std::string(to_string(entry.type));
    return fail(StatusCode::kCorruption, fmt::format("{}: key \"{}\" has type {}, allowed is {}",
                                                     path, printable(entry.key), seen, allowed));
  }
};

GgufFile::GgufFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GgufFile::GgufFile(GgufFile&&) noexcept = default;
GgufFile& GgufFile::operator=(GgufFile&&) noexcept = default;
GgufFile::~GgufFile() = default;

Expected<GgufFile> GgufFile::open(const std::string& path) {
  auto mapping = map_file(path);
  if (!mapping) {
    return fail(mapping.error());
  }
  auto file = parse(mapping->bytes(), path);
  if (file) {
    file->impl_->mapping = std::move(*mapping);
  }
  return file;
}

Expected<GgufFile> GgufFile::parse(std::span<const std::byte> bytes, std::string name) {
  auto contents = parse_gguf(bytes, name);
  if (!contents) {
    return fail(contents.error());
  }
  return GgufFile(
      std::make_unique<Impl>(Impl{std::move(name), Mapping(), bytes, std::move(*contents)}));
}

const std::string& GgufFile::path() const { return impl_->path; }
std::uint32_t GgufFile::version() const { return impl_->contents.version; }
std::span<const std::byte> GgufFile::bytes() const { return impl_->bytes; }

bool GgufFile::has(std::string_view key) const {
  return impl_->contents.find_entry(key) != nullptr;
}

std::vector<std::string_view> GgufFile::keys() const {
  std::vector<std::string_view> keys;
  keys.reserve(impl_->contents.entries.size());
  for (const GgufEntry& entry : impl_->contents.entries) {
    keys.push_back(entry.key);
  }
  return keys;
}

GgufType GgufFile::type(std::string_view key) const {
  const GgufEntry* entry = impl_->contents.find_entry(key);
  KAREZ_CHECK(entry != nullptr, "type() of a key that the file does not have");
  return entry->type;
}

Expected<std::int64_t> GgufFile::get_int(std::string_view key) const {
  const auto entry = impl_->find(key);
  if (!entry) {
    return fail(entry.error());
  }
  const GgufEntry& found = **entry;
  if (found.type != GgufType::kBool) {
    if (const auto value = load_integer(found.type, found.value.data())) {
      return *value;
    }
    if (found.type == GgufType::kU64) {
      return fail(StatusCode::kCorruption,
                  fmt::format("{}: key \"{}\" is {}, allowed are values up to {}", impl_->path,
                              printable(key), load_value<std::uint64_t>(found.value.data()),
                              std::numeric_limits<std::int64_t>::max()));
    }
  }
  return impl_->wrong_type(found, "an integer");
}

Expected<double> GgufFile::get_float(std::string_view key) const {
  const auto entry = impl_->find(key);
  if (!entry) {
    return fail(entry.error());
  }
  switch ((*entry)->type) {
    case GgufType::kF32:
      return static_cast<double>(load_value<float>((*entry)->value.data()));
    case GgufType::kF64:
      return load_value<double>((*entry)->value.data());
    default:
      return impl_->wrong_type(**entry, "f32 or f64");
  }
}

Expected<bool> GgufFile::get_bool(std::string_view key) const {
  const auto entry = impl_->find(key);
  if (!entry) {
    return fail(entry.error());
  }
  if ((*entry)->type != GgufType::kBool) {
    return impl_->wrong_type(**entry, "bool");
  }
  return load_value<std::uint8_t>((*entry)->value.data()) != 0;
}

Expected<std::string_view> GgufFile::get_string(std::string_view key) const {
  const auto entry = impl_->find(key);
  if (!entry) {
    return fail(entry.error());
  }
  if ((*entry)->type != GgufType::kString) {
    return impl_->wrong_type(**entry, "string");
  }
  const auto text = (*entry)->value.subspan(sizeof(std::uint64_t));
  return std::string_view(reinterpret_cast<const char*>(text.data()), text.size());
}

Expected<GgufFile::ArrayInfo> GgufFile::array_info(std::string_view key) const {
  const auto entry = impl_->find(key);
  if (!entry) {
    return fail(entry.error());
  }
  if ((*entry)->type != GgufType::kArray) {
    return impl_->wrong_type(**entry, "an array");
  }
  return ArrayInfo{(*entry)->element_type, (*entry)->length};
}

Expected<std::vector<std::int64_t>> GgufFile::get_int_array(std::string_view key,
                                                            std::size_t max_length) const {
  const auto info = array_info(key);
  if (!info) {
    return fail(info.error());
  }
  const GgufEntry& entry = *impl_->contents.find_entry(key);
  if (info->length > max_length) {
    return fail(StatusCode::kCorruption,
                fmt::format("{}: key \"{}\" has {} elements, allowed are at most {}", impl_->path,
                            printable(key), info->length, max_length));
  }
  std::vector<std::int64_t> values;
  values.reserve(info->length);
  const std::size_t element_bytes = gguf_scalar_bytes(info->element_type);
  for (std::size_t i = 0; i < info->length; ++i) {
    const auto value = load_integer(info->element_type, entry.value.data() + i * element_bytes);
    if (!value) {
      return impl_->wrong_type(entry, "an array of integers below 2^63");
    }
    values.push_back(*value);
  }
  return values;
}

Expected<std::vector<std::string_view>> GgufFile::get_string_array(std::string_view key) const {
  const auto info = array_info(key);
  if (!info) {
    return fail(info.error());
  }
  const GgufEntry& entry = *impl_->contents.find_entry(key);
  if (info->element_type != GgufType::kString) {
    return impl_->wrong_type(entry, "an array of strings");
  }
  std::vector<std::string_view> values;
  values.reserve(info->length);
  const char* at = reinterpret_cast<const char*>(entry.value.data());
  for (std::uint64_t i = 0; i < info->length; ++i) {
    const auto length = load_value<std::uint64_t>(reinterpret_cast<const std::byte*>(at));
    values.emplace_back(at + sizeof(length), length);
    at += sizeof(length) + length;
  }
  return values;
}

std::span<const GgufTensor> GgufFile::tensors() const { return impl_->contents.tensors; }

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  return impl_->contents.find_tensor(name);
}

void GgufFile::drop_pages(std::span<const std::byte> range) const {
  if (impl_->mapping.bytes().empty()) {
    return;
  }
  // Whole pages only: the neighbours of the range may be in use.
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto start = reinterpret_cast<std::uintptr_t>(range.data());
  const std::uintptr_t first = (start + page - 1) / page * page;
  const std::uintptr_t last = (start + range.size()) / page * page;
  if (first < last) {
    madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  }
}

}  // namespace karez
