#include "server/api_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <utility>

#include "base/host_port.h"
#include "base/ip_address.h"

namespace karez {
namespace {

struct KnownRoute {
  std::string_view path;
  Route route;
  bool is_post;
};

constexpr std::array<KnownRoute, 15> kRoutes = {{
    {"/", Route::kPage, false},
    {"/health", Route::kHealth, false},
    {"/v1/health", Route::kHealth, false},
    {"/v1/models", Route::kModels, false},
    {"/models", Route::kModels, false},
    {"/v1/chat/completions", Route::kChatCompletions, true},
    {"/chat/completions", Route::kChatCompletions, true},
    {"/v1/completions", Route::kCompletions, true},
    {"/tokenize", Route::kTokenize, true},
    {"/detokenize", Route::kDetokenize, true},
    {"/apply-template", Route::kApplyTemplate, true},
    {"/props", Route::kProps, false},
    {"/metrics", Route::kMetrics, false},
    {"/karez/stats", Route::kStats, false},
    {"/karez/kv-map", Route::kKvMap, false},
}};
constexpr std::string_view kModelPrefix = "/v1/models/";

// Without the query; "//v1//models/" becomes "/v1/models".
std::string folded_path(std::string_view target) {
  std::string path;
  for (const char c : target.substr(0, target.find_first_of("?#"))) {
    if (c != '/' || path.empty() || path.back() != '/') {
      path += c;
    }
  }
  if (path.size() > 1 && path.back() == '/') {
    path.pop_back();
  }
  return path;
}

const KnownRoute* find_route(std::string_view path) {
  const auto* found = std::find_if(kRoutes.begin(), kRoutes.end(),
                                   [path](const KnownRoute& known) { return known.path == path; });
  return found == kRoutes.end() ? nullptr : found;
}

// In time that does not depend on where two keys differ.
bool same_key(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference |=
        static_cast<unsigned>(static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]));
  }
  return difference == 0;
}

int find_key(const HttpRequest& request, const AccessRules& rules) {
  constexpr std::string_view kScheme = "bearer ";
  const std::string_view header = request.authorization;
  const bool is_bearer =
      header.size() > kScheme.size() &&
      std::equal(kScheme.begin(), kScheme.end(), header.begin(), [](char wanted, char seen) {
        return wanted == std::tolower(static_cast<unsigned char>(seen));
      });
  int found = -1;
  for (std::size_t i = 0; is_bearer && i < rules.api_keys.size(); ++i) {
    if (same_key(header.substr(kScheme.size()), rules.api_keys[i])) {
      found = static_cast<int>(i);
    }
  }
  return found;
}

bool origin_allowed(const HttpRequest& request, const AccessRules& rules) {
  return std::any_of(rules.cors_origins.begin(), rules.cors_origins.end(),
                     [&request](const std::string& allowed) {
                       return allowed == "*" || allowed == request.origin;
                     });
}

// Host header without its port names this machine's loopback.
bool host_is_loopback(std::string_view host) {
  const auto parts = split_host_port(host);
  return parts && names_loopback(parts->host);
}

// What a browser asks to send, as it asks for it, if these are names of headers and nothing else.
std::string allowed_headers(const HttpRequest& request) {
  const auto is_of_names = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == ',' || c == ' ';
  };
  const std::string& asked = request.preflight_headers;
  return !asked.empty() && std::ranges::all_of(asked, is_of_names)
             ? asked
             : std::string("Authorization, Content-Type");
}

// "%2F" is "/". What is no such escape stays as it is, and names nothing.
std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    const char* digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(digits, digits + 2, value, 16).ptr == digits + 2) {
      decoded += static_cast<char>(value);
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

ApiError forbidden(std::string message) {
  ApiError error = ApiError::bad_request(403, std::move(message), "forbidden");
  error.type = "permission_error";
  return error;
}

// Without a key the browser of this machine's user is a way in for every page that it shows.
std::optional<ApiError> browser_attack(const HttpRequest& request, const AccessRules& rules) {
  if (!rules.api_keys.empty()) {
    return std::nullopt;
  }
  if (rules.loopback_only && !request.host.empty() && !host_is_loopback(request.host)) {
    return forbidden("the Host header does not name this machine");
  }
  const bool same_origin =
      request.origin == "http://" + request.host || request.origin == "https://" + request.host;
  if (!request.origin.empty() && !same_origin && !origin_allowed(request, rules)) {
    return forbidden("this origin is not allowed; the flag --cors-origins lists those that are");
  }
  return std::nullopt;
}

}  // namespace

std::string allowed_methods(std::string_view target) {
  const std::string path = folded_path(target);
  const KnownRoute* known = find_route(path);
  return known != nullptr && known->is_post ? "POST" : "GET, HEAD";
}

std::string_view route_name(std::string_view target) {
  const std::string path = folded_path(target);
  const KnownRoute* known = find_route(path);
  return known != nullptr                 ? known->path
         : path.starts_with(kModelPrefix) ? kModelPrefix
                                          : std::string_view();
}

ApiResult<RouteMatch> match_route(const HttpRequest& request, const AccessRules& rules) {
  if (auto error = browser_attack(request, rules)) {
    return api_fail(std::move(*error));
  }
  RouteMatch match;
  if (request.method == "OPTIONS" && !request.origin.empty() && origin_allowed(request, rules)) {
    match.route = Route::kPreflight;
    return match;
  }
  const std::string path = folded_path(request.target);
  const KnownRoute* known = find_route(path);
  const bool reads = request.method == "GET" || request.method == "HEAD";
  const bool is_public =
      known != nullptr && reads && (known->route == Route::kHealth || known->route == Route::kPage);
  if (!rules.api_keys.empty()) {
    match.key_index = find_key(request, rules);
    if (match.key_index < 0 && !is_public) {
      ApiError error = ApiError::bad_request(
          401, "a valid API key is needed: Authorization: Bearer KEY", "invalid_api_key");
      error.type = "authentication_error";
      return api_fail(std::move(error));
    }
  }
  const bool is_model = known == nullptr && path.starts_with(kModelPrefix);
  if (known == nullptr && !is_model) {
    return api_fail(ApiError::bad_request(404, "there is no such route", "not_found"));
  }
  const bool is_post = known != nullptr && known->is_post;
  if (is_post ? request.method != "POST" : !reads) {
    return api_fail(ApiError::bad_request(
        405, fmt::format("this route takes {}", is_post ? "POST" : "GET and HEAD"),
        "method_not_allowed"));
  }
  match.route = is_model ? Route::kModel : known->route;
  if (is_model) {
    match.argument = percent_decoded(std::string_view(path).substr(kModelPrefix.size()));
  }
  return match;
}

std::vector<std::pair<std::string, std::string>> cors_headers(const HttpRequest& request,
                                                              const AccessRules& rules) {
  if (request.origin.empty() || !origin_allowed(request, rules)) {
    return {};
  }
  return {{"Access-Control-Allow-Origin", request.origin},
          {"Vary", "Origin"},
          {"Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS"},
          {"Access-Control-Allow-Headers", allowed_headers(request)},
          {"Access-Control-Expose-Headers", "Retry-After"},
          {"Access-Control-Max-Age", "600"}};
}

HttpResponse make_error_response(const HttpRequest& request, const ApiError& error,
                                 const AccessRules& rules) {
  HttpResponse response;
  response.status = error.http_status;
  response.body = error.to_json();
  response.headers = cors_headers(request, rules);
  if (error.retry_after_seconds) {
    response.headers.emplace_back("Retry-After", std::to_string(*error.retry_after_seconds));
  }
  if (error.http_status == 405) {
    response.headers.emplace_back("Allow", allowed_methods(request.target));
  }
  if (error.http_status == 401) {
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
  }
  return response;
}

HttpResponse make_protocol_error(int status, std::string message) {
  HttpResponse response;
  response.status = status;
  response.body = ApiError::bad_request(status, std::move(message)).to_json();
  return response;
}

}  // namespace karez
