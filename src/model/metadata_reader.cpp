#include "model/metadata_reader.h"

#include <fmt/format.h>

#include "model/gguf_file.h"

namespace karez {

bool MetadataReader::has(std::string_view key) const { return file_.has(full_key(key)); }

int MetadataReader::integer(std::string_view key, int min, int max, std::optional<int> fallback) {
  if (fallback && !has(key)) {
    return *fallback;
  }
  const auto value = file_.get_int(full_key(key));
  if (!value) {
    keep(value.error());
    return min;
  }
  if (*value < min || *value > max) {
    refuse(StatusCode::kCorruption, key,
           fmt::format("is {}, allowed are {} to {}", *value, min, max));
    return min;
  }
  return static_cast<int>(*value);
}

float MetadataReader::number(std::string_view key, float min, float max,
                             std::optional<float> fallback) {
  if (fallback && !has(key)) {
    return *fallback;
  }
  const auto value = file_.get_float(full_key(key));
  if (!value) {
    keep(value.error());
    return max;
  }
  const auto rounded = static_cast<float>(*value);
  if (!(rounded >= min && rounded <= max)) {  // NaN fails both
    refuse(StatusCode::kCorruption, key,
           fmt::format("is {}, allowed are {} to {}", *value, min, max));
    return max;
  }
  return rounded;
}

float MetadataReader::positive_number(std::string_view key, float max,
                                      std::optional<float> fallback) {
  const float value = number(key, 0, max, fallback);
  if (value == 0.0F) {
    refuse(StatusCode::kCorruption, key,
           fmt::format("is 0, allowed are numbers above 0 up to {}", max));
    return max;
  }
  return value;
}

int MetadataReader::same_for_all_layers(std::string_view key, int num_layers, int min, int max,
                                        std::optional<int> fallback) {
  if (!has(key) || file_.type(full_key(key)) != GgufType::kArray) {
    return integer(key, min, max, fallback);
  }
  const auto values = file_.get_int_array(full_key(key), static_cast<std::size_t>(num_layers));
  if (!values) {
    keep(values.error());
    return min;
  }
  if (values->size() != static_cast<std::size_t>(num_layers)) {
    refuse(StatusCode::kCorruption, key,
           fmt::format("has {} elements, allowed is one for each of the {} layers", values->size(),
                       num_layers));
    return min;
  }
  for (const std::int64_t value : *values) {
    if (value < min || value > max) {
      refuse(StatusCode::kCorruption, key,
             fmt::format("contains {}, allowed are {} to {}", value, min, max));
      return min;
    }
    if (value != values->front()) {
      refuse(StatusCode::kUnimplemented, key,
             fmt::format("differs between layers ({} and {}), which is not supported",
                         values->front(), value));
      return min;
    }
  }
  return static_cast<int>(values->front());
}

bool MetadataReader::boolean(std::string_view key, bool fallback) {
  if (!has(key)) {
    return fallback;
  }
  const auto value = file_.get_bool(full_key(key));
  if (!value) {
    keep(value.error());
    return fallback;
  }
  return *value;
}

std::string MetadataReader::text(std::string_view key, std::string_view fallback) {
  if (!has(key)) {
    return std::string(fallback);
  }
  const auto value = file_.get_string(full_key(key));
  if (!value) {
    keep(value.error());
    return std::string(fallback);
  }
  return std::string(*value);
}

void MetadataReader::refuse(StatusCode code, std::string_view key, std::string_view what) {
  keep(Status(code, fmt::format("{}: key \"{}\" {}", file_.path(), full_key(key), what)));
}

Expected<void> MetadataReader::status() const {
  if (failure_) {
    return fail(*failure_);
  }
  return {};
}

std::string MetadataReader::full_key(std::string_view key) const {
  return fmt::format("{}.{}", architecture_, key);
}

void MetadataReader::keep(Status status) {
  if (failure_) {
    return;
  }
  // A model that lacks a key is malformed, whoever opened it; "not found" means the file itself.
  failure_ = status.code() == StatusCode::kNotFound
                 ? Status(StatusCode::kCorruption, status.message())
                 : std::move(status);
}

}  // namespace karez
