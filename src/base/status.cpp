#include "base/status.h"

namespace karez {

std::string_view to_string(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
      return "invalid argument";
    case StatusCode::kNotFound:
      return "not found";
    case StatusCode::kResourceExhausted:
      return "resource exhausted";
    case StatusCode::kUnavailable:
      return "unavailable";
    case StatusCode::kDeadlineExceeded:
      return "deadline exceeded";
    case StatusCode::kCancelled:
      return "cancelled";
    case StatusCode::kCorruption:
      return "corruption";
    case StatusCode::kIoError:
      return "i/o error";
    case StatusCode::kUnimplemented:
      return "unimplemented";
    case StatusCode::kInternal:
      return "internal error";
  }
  return "unknown";
}

std::string Status::to_string() const {
  return std::string(karez::to_string(code_)) + ": " + message_;
}

}  // namespace karez
