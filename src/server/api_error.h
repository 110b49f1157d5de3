// An error as an HTTP client sees it: a status code and OpenAI's error object.
//
// {"error": {"message", "type", "param", "code"}}; param names the request's field as a path
// ("messages[0].content"), null where no field is at fault.
// Thread: values.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

#include "base/status.h"

namespace karez {

struct ApiError {
  int http_status = 500;
  std::string message;
  std::string type;   // "invalid_request_error", "authentication_error", "server_error", ...
  std::string param;  // empty: null
  std::string code;   // empty: null
  // The client should wait so long before it tries again.
  std::optional<int> retry_after_seconds;

  // A 400 for one field.
  static ApiError bad_field(std::string_view field, std::string message);
  // A 4xx without a field.
  static ApiError bad_request(int http_status, std::string message, std::string code = {});
  // What the engine or the tokenizer said. Client faults are 400 with the status' field as param, a
  // full queue is 503; the message of a fault of ours stays in the log, because it may hold file
  // names.
  static ApiError from_status(const Status& status);

  // The object with the key "error", as a text.
  std::string to_json() const;
};

// The code of a 503: KV could not be kept for a consumer, or did not come from a producer.
inline constexpr const char* kTransferFailedCode = "kv_transfer_failed";

template <typename T>
using ApiResult = tl::expected<T, ApiError>;

inline tl::unexpected<ApiError> api_fail(ApiError error) {
  return tl::unexpected<ApiError>(std::move(error));
}

}  // namespace karez
