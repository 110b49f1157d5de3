// Errors as values. Status says what went wrong; Expected<T> is a T or a Status.
//
// A shortage that is normal in operation (no free slots, cache miss) is neither: it is a plain
// value such as std::optional, so that callers cannot mistake it for a failure.
// Messages read: what, which field or file, the value seen, the value allowed.
// Thread: values, no shared state.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace karez {

enum class StatusCode {
  kInvalidArgument,    // the user asked for something that cannot be; exit code 2
  kNotFound,           // a named file or key does not exist
  kResourceExhausted,  // a configured limit is too small for the request
  kUnavailable,        // a peer or device cannot answer now
  kDeadlineExceeded,
  kCancelled,
  kCorruption,  // stored bytes are not what they claim to be
  kIoError,
  kUnimplemented,
  kInternal,  // a bug of ours or of a library
};

std::string_view to_string(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  // The path of the request's field that is at fault ("kv_compression.keep"), so that a caller need
  // not read it out of the message. Empty: none, or no request.
  const std::string& field() const { return field_; }
  Status with_field(std::string field) && {
    field_ = std::move(field);
    return std::move(*this);
  }

  // "invalid argument: --token-budget is 12, allowed are multiples of 16 from 16"
  std::string to_string() const;

 private:
  StatusCode code_;
  std::string message_;
  std::string field_;
};

template <typename T>
using Expected = tl::expected<T, Status>;

// return fail(StatusCode::kNotFound, fmt::format("{}: no such file", path));
inline tl::unexpected<Status> fail(StatusCode code, std::string message) {
  return tl::unexpected<Status>(Status(code, std::move(message)));
}
inline tl::unexpected<Status> fail(Status status) {
  return tl::unexpected<Status>(std::move(status));
}
// kInvalidArgument for a field of a request.
inline tl::unexpected<Status> fail_field(std::string field, std::string message) {
  return fail(
      Status(StatusCode::kInvalidArgument, std::move(message)).with_field(std::move(field)));
}

}  // namespace karez
