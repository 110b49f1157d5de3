#include "server/api_error.h"

#include <nlohmann/json.hpp>

namespace karez {
namespace {

constexpr int kRetrySeconds = 1;

nlohmann::json text_or_null(const std::string& text) {
  return text.empty() ? nlohmann::json(nullptr) : nlohmann::json(text);
}

}  // namespace

ApiError ApiError::bad_field(std::string_view field, std::string message) {
  return {.http_status = 400,
          .message = std::move(message),
          .type = "invalid_request_error",
          .param = std::string(field),
          .code = {},
          .retry_after_seconds = {}};
}

ApiError ApiError::bad_request(int http_status, std::string message, std::string code) {
  return {.http_status = http_status,
          .message = std::move(message),
          .type = "invalid_request_error",
          .param = {},
          .code = std::move(code),
          .retry_after_seconds = {}};
}

ApiError ApiError::from_status(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kNotFound:
    case StatusCode::kUnimplemented:
    case StatusCode::kResourceExhausted: {
      const bool too_long = status.code() == StatusCode::kResourceExhausted;
      ApiError error =
          bad_request(400, status.message(), too_long ? "context_length_exceeded" : "");
      error.param = status.field();
      return error;
    }
    case StatusCode::kUnavailable:
    case StatusCode::kCancelled:
      return {.http_status = 503,
              .message = status.message(),
              .type = "unavailable_error",
              .param = {},
              .code = "overloaded",
              .retry_after_seconds = kRetrySeconds};
    case StatusCode::kDeadlineExceeded:
      return {.http_status = 503,
              .message = status.message(),
              .type = "timeout_error",
              .param = {},
              .code = "timeout",
              .retry_after_seconds = kRetrySeconds};
    case StatusCode::kCorruption:
    case StatusCode::kIoError:
    case StatusCode::kInternal:
      break;
  }
  return {.http_status = 500,
          .message = "the server failed to run this request; its log says why",
          .type = "server_error",
          .param = {},
          .code = "internal_error",
          .retry_after_seconds = {}};
}

std::string ApiError::to_json() const {
  const nlohmann::json body = {{"error",
                                {{"message", message},
                                 {"type", type},
                                 {"param", text_or_null(param)},
                                 {"code", text_or_null(code)}}}};
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace karez
