// Which route a request means, and whether it may use it. Pure: no sockets, no JSON bodies.
//
// Paths are compared as they are written, after repeated and trailing slashes are folded: an
// escaped path (%2f) is simply unknown. The key is checked before the path is looked at, so no
// spelling of a path goes around it.
// Thread: pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "server/http_types.h"

namespace karez {

enum class Route {
  kPage,
  kHealth,
  kModels,
  kModel,  // /v1/models/NAME
  kChatCompletions,
  kCompletions,
  kTokenize,
  kDetokenize,
  kApplyTemplate,
  kProps,
  kMetrics,
  kStats,
  kKvMap,
  kPreflight,  // OPTIONS of an allowed origin
};

struct AccessRules {
  std::vector<std::string> api_keys;      // empty: no key needed
  std::vector<std::string> cors_origins;  // "*" or "https://host"; empty: no other origin
  bool loopback_only = false;             // the server listens on a loopback address
};

struct RouteMatch {
  Route route = Route::kPage;
  std::string argument;  // the model's name of kModel
  int key_index = -1;    // of the key that was used
};

// Fails: 401 (key), 403 (origin or host), 404, 405 (with the header Allow).
ApiResult<RouteMatch> match_route(const HttpRequest& request, const AccessRules& rules);

// The path of a known route without a model's name ("/v1/models/"), so that logs hold nothing that
// a client made up. Empty for any other path.
std::string_view route_name(std::string_view target);

// The Access-Control headers for the response to this request; none if CORS is off.
std::vector<std::pair<std::string, std::string>> cors_headers(const HttpRequest& request,
                                                              const AccessRules& rules);

// The methods that the path of a 405 allows: "GET, HEAD".
std::string allowed_methods(std::string_view target);

// The whole response for an error, with the headers that its status asks for.
HttpResponse make_error_response(const HttpRequest& request, const ApiError& error,
                                 const AccessRules& rules);
// That for a request of which nothing could be read.
HttpResponse make_protocol_error(int status, std::string message);

}  // namespace karez
