#include "server/json_input.h"

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace karez {
namespace {

using json = Json;

// Builds the document from parse events, so that a limit stops the work when it is reached.
class DocumentBuilder final : public json::json_sax_t {
 public:
  explicit DocumentBuilder(const JsonLimits& limits) : limits_(limits) {}

  bool null() override { return add(json(nullptr)) != nullptr; }
  bool boolean(bool value) override { return add(json(value)) != nullptr; }
  bool number_integer(json::number_integer_t value) override { return add(json(value)) != nullptr; }
  bool number_unsigned(json::number_unsigned_t value) override {
    return add(json(value)) != nullptr;
  }
  bool number_float(json::number_float_t value, const json::string_t&) override {
    return add(json(value)) != nullptr;
  }
  bool string(json::string_t& value) override {
    if (value.find('\0') != std::string::npos) {
      return stop("has the character U+0000, which no text may hold");
    }
    return add(json(std::move(value))) != nullptr;
  }
  bool binary(json::binary_t&) override { return stop("is binary"); }
  bool start_object(std::size_t) override { return open(json::object()); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_array() override { return close(); }

  bool key(json::string_t& value) override {
    const bool is_new = names_.back().insert(value).second;
    pending_key_ = std::move(value);
    if (!is_new) {
      return stop("appears twice");
    }
    if (pending_key_.find('\0') != std::string::npos) {
      pending_key_.clear();
      return stop("has a key with the character U+0000");
    }
    // Appended past the map's own insert, which would search for the key.
    auto& members =
        static_cast<json::object_t::Container&>(open_.back()->get_ref<json::object_t&>());
    target_ = &members.emplace_back(pending_key_, nullptr).second;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const json::exception& exception) override {
    if (!error_) {
      const bool number = exception.id == 406;
      error_ = ApiError::bad_request(
          400, number ? fmt::format("the body has a number beyond double at byte {}", position)
                      : fmt::format("the body is not valid JSON in UTF-8 at byte {}", position));
      error_->code = "invalid_json";
    }
    return false;
  }

  ApiResult<json> take(bool parsed) {
    if (error_) {
      return api_fail(std::move(*error_));
    }
    if (!parsed || !root_.is_object()) {
      return api_fail(ApiError::bad_request(400, "the body must be a JSON object", "invalid_json"));
    }
    return std::move(root_);
  }

 private:
  // Where the next value goes, as the message names it.
  std::string path() const {
    std::string text;
    for (std::size_t i = 0; i < open_.size(); ++i) {
      if (open_[i]->is_array()) {
        const bool last = i + 1 == open_.size();
        const std::size_t size = open_[i]->size();
        text += fmt::format("[{}]", last ? size : size - 1);
      } else {
        const std::string& name = i + 1 == open_.size() ? pending_key_ : keys_[i + 1];
        text += (text.empty() ? "" : ".") + name;
      }
    }
    return text;
  }

  bool stop(std::string_view problem) {
    const std::string field = path();
    error_ = ApiError::bad_field(
        field, fmt::format("{} {}", field.empty() ? std::string("the body") : field, problem));
    return false;
  }

  json* add(json value) {
    if (++num_values_ > limits_.max_values) {
      stop(fmt::format("is one value too many: a body may have {}", limits_.max_values));
      return nullptr;
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      open_.back()->push_back(std::move(value));
      return &open_.back()->back();
    }
    *target_ = std::move(value);
    return target_;
  }

  bool open(json value) {
    if (open_.size() >= limits_.max_depth) {
      return stop(fmt::format("is nested deeper than {} levels", limits_.max_depth));
    }
    json* place = add(std::move(value));
    if (place == nullptr) {
      return false;
    }
    open_.push_back(place);
    names_.emplace_back();
    keys_.push_back(std::move(pending_key_));
    pending_key_.clear();
    return true;
  }

  bool close() {
    pending_key_ = std::move(keys_.back());
    keys_.pop_back();
    names_.pop_back();
    open_.pop_back();
    return true;
  }

  const JsonLimits& limits_;
  json root_;
  // Objects and arrays not closed yet. Their addresses hold: only the innermost one grows.
  std::vector<json*> open_;
  std::vector<std::string> keys_;  // keys_[i]: the key in open_[i - 1] under which open_[i] is
  std::vector<std::unordered_set<std::string>> names_;  // keys seen in open_[i]
  std::string pending_key_;
  json* target_ = nullptr;  // of the pending key
  std::size_t num_values_ = 0;
  std::optional<ApiError> error_;
};

}  // namespace

ApiResult<Json> parse_json_object(std::string_view text, const JsonLimits& limits) {
  DocumentBuilder builder(limits);
  const bool parsed = json::sax_parse(text, &builder);
  return builder.take(parsed);
}

}  // namespace karez
