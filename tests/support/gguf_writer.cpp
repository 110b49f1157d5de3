#include "support/gguf_writer.h"

#include <algorithm>
#include <fstream>
#include <stdexcept>
#include <utility>

namespace karez::test {

void GgufWriter::append_text(std::vector<std::byte>& to, std::string_view text) {
  append(to, raw<std::uint64_t>(text.size()));
  append(to, std::as_bytes(std::span(text)));
}

void GgufWriter::put(const std::string& key, GgufType type, std::vector<std::byte> value) {
  const auto found = std::ranges::find(keys_, key, &Key::name);
  if (found != keys_.end()) {
    *found = {key, type, std::move(value)};
  } else {
    keys_.push_back({key, type, std::move(value)});
  }
}

void GgufWriter::put_array(const std::string& key, GgufType type, std::size_t length,
                           std::span<const std::byte> payload) {
  std::vector<std::byte> value = raw(type);
  append(value, raw<std::uint64_t>(length));
  append(value, payload);
  put(key, GgufType::kArray, std::move(value));
}

void GgufWriter::set(const std::string& key, std::string_view text) {
  std::vector<std::byte> value;
  append_text(value, text);
  put(key, GgufType::kString, std::move(value));
}

void GgufWriter::set_array(const std::string& key, const std::vector<std::string>& texts) {
  std::vector<std::byte> payload;
  for (const std::string& text : texts) {
    append_text(payload, text);
  }
  put_array(key, GgufType::kString, texts.size(), payload);
}

void GgufWriter::remove(const std::string& key) {
  std::erase_if(keys_, [&](const Key& entry) { return entry.name == key; });
}

bool GgufWriter::has(const std::string& key) const {
  return std::ranges::find(keys_, key, &Key::name) != keys_.end();
}

std::vector<std::string> GgufWriter::keys() const {
  std::vector<std::string> names;
  for (const Key& key : keys_) {
    names.push_back(key.name);
  }
  return names;
}

void GgufWriter::add_tensor(const std::string& name, std::uint32_t type,
                            const std::vector<std::int64_t>& shape,
                            std::span<const std::byte> data) {
  tensors_.push_back({name, type, shape, {data.begin(), data.end()}});
}

GgufImage GgufWriter::build() const {
  GgufImage image;
  std::vector<std::byte>& out = image.bytes;
  append(out, std::as_bytes(std::span("GGUF", 4)));
  append(out, raw(version));
  append(out, raw<std::uint64_t>(tensors_.size()));
  append(out, raw<std::uint64_t>(keys_.size()));
  for (const Key& key : keys_) {
    GgufImage::KeyPlace& place = image.keys[key.name];
    place.entry = out.size();
    append_text(out, key.name);
    place.type = out.size();
    append(out, raw(key.type));
    place.value = out.size();
    append(out, key.value);
    place.end = out.size();
  }
  const auto padded = [&](std::uint64_t size) {
    return (size + alignment - 1) / alignment * alignment;
  };
  std::uint64_t offset = 0;
  for (const Tensor& tensor : tensors_) {
    GgufImage::TensorPlace& place = image.tensors[tensor.name];
    place.entry = out.size();
    append_text(out, tensor.name);
    place.num_dims = out.size();
    append(out, raw(static_cast<std::uint32_t>(tensor.shape.size())));
    place.dims = out.size();
    for (const std::int64_t dim : tensor.shape) {
      append(out, raw(dim));
    }
    place.type = out.size();
    append(out, raw(tensor.type));
    place.offset = out.size();
    append(out, raw(offset));
    offset += padded(tensor.data.size());
  }
  out.resize(padded(out.size()));
  image.data = out.size();
  for (const Tensor& tensor : tensors_) {
    append(out, tensor.data);
    out.resize(image.data + padded(out.size() - image.data));
  }
  return image;
}

void GgufWriter::write(const std::string& path) const { write_file(path, build().bytes); }

void write_file(const std::string& path, std::span<const std::byte> bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) {
    throw std::runtime_error("cannot write " + path);
  }
}

}  // namespace karez::test
