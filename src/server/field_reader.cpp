#include "server/field_reader.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace karez {
namespace {

using json = Json;

// The whole number that a JSON number is, if it is one: 3 and 3.0 are the same number in JSON.
std::optional<std::int64_t> whole(const json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(INT64_MAX)) {
      return INT64_MAX;
    }
    return static_cast<std::int64_t>(number);
  }
  if (value.is_number_integer()) {
    return value.get<std::int64_t>();
  }
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (std::abs(number) < 9e15 && std::floor(number) == number) {
      return static_cast<std::int64_t>(number);
    }
  }
  return std::nullopt;
}

std::string range_text(std::int64_t low, std::int64_t high) {
  return high == INT64_MAX ? fmt::format("integers from {}", low)
                           : fmt::format("integers from {} to {}", low, high);
}

}  // namespace

std::string describe(const json& value) {
  switch (value.type()) {
    case json::value_t::null:
      return "null";
    case json::value_t::boolean:
      return value.get<bool>() ? "true" : "false";
    case json::value_t::string:
      return "a string";
    case json::value_t::array:
      return fmt::format("an array of {}", value.size());
    case json::value_t::object:
      return "an object";
    case json::value_t::number_integer:
    case json::value_t::number_unsigned:
    case json::value_t::number_float:
      return value.dump();
    case json::value_t::binary:
    case json::value_t::discarded:
      break;
  }
  return "no JSON value";
}

FieldReader::FieldReader(const json& object, std::string path, FieldProblem& problem)
    : object_(object), path_(std::move(path)), problem_(problem) {}

const json* FieldReader::find(std::string_view field) const {
  const auto found = object_.find(field);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::string FieldReader::path_of(std::string_view field) const {
  return path_.empty() ? std::string(field) : fmt::format("{}.{}", path_, field);
}

std::optional<bool> FieldReader::boolean(std::string_view field) {
  const json* value = find(field);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_boolean()) {
    wrong(field, describe(*value), "true and false");
    return std::nullopt;
  }
  return value->get<bool>();
}

std::optional<std::int64_t> FieldReader::integer(std::string_view field, std::int64_t low,
                                                 std::int64_t high) {
  const json* value = find(field);
  if (value == nullptr) {
    return std::nullopt;
  }
  const auto number = whole(*value);
  if (!number || *number < low || *number > high) {
    wrong(field, describe(*value), range_text(low, high));
    return std::nullopt;
  }
  return number;
}

std::optional<double> FieldReader::number(std::string_view field, double low, double high) {
  const json* value = find(field);
  if (value == nullptr) {
    return std::nullopt;
  }
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (!(number >= low && number <= high)) {
    wrong(field, describe(*value), fmt::format("numbers from {} to {}", low, high));
    return std::nullopt;
  }
  return number;
}

std::optional<std::string> FieldReader::string(std::string_view field) {
  const json* value = find(field);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_string()) {
    wrong(field, describe(*value), "strings");
    return std::nullopt;
  }
  return value->get<std::string>();
}

const json* FieldReader::object(std::string_view field) {
  const json* value = find(field);
  if (value != nullptr && !value->is_object()) {
    wrong(field, describe(*value), "objects");
    return nullptr;
  }
  return value;
}

const json* FieldReader::array(std::string_view field) {
  const json* value = find(field);
  if (value != nullptr && !value->is_array()) {
    wrong(field, describe(*value), "arrays");
    return nullptr;
  }
  return value;
}

void FieldReader::wrong(std::string_view field, std::string_view seen, std::string_view allowed) {
  fail(field, fmt::format("{} is {}, allowed are {}", path_of(field), seen, allowed));
}

void FieldReader::fail(std::string_view field, std::string message) {
  if (!problem_.error) {
    problem_.error = ApiError::bad_field(path_of(field), std::move(message));
  }
}

}  // namespace karez
