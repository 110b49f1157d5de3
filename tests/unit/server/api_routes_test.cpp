#include "server/api_routes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

namespace karez {
namespace {

HttpRequest request(std::string method, std::string target, std::string authorization = "") {
  HttpRequest made;
  made.method = std::move(method);
  made.target = std::move(target);
  made.host = "127.0.0.1:8080";
  made.authorization = std::move(authorization);
  return made;
}

int status_of(const HttpRequest& made, const AccessRules& rules) {
  const auto match = match_route(made, rules);
  return match ? 200 : match.error().http_status;
}

const AccessRules kOpen = {.api_keys = {}, .cors_origins = {}, .loopback_only = true};
const AccessRules kKeyed = {
    .api_keys = {"k1", "key-two"}, .cors_origins = {}, .loopback_only = true};

TEST(ApiRoutes, KnowsItsRoutesWithFoldedSlashesAndQueries) {
  for (const char* target : {"/v1/models", "/v1/models/", "//v1//models", "/v1/models?a=/b"}) {
    const auto match = match_route(request("GET", target), kOpen);
    ASSERT_TRUE(match.has_value()) << target;
    EXPECT_EQ(match->route, Route::kModels);
  }
  EXPECT_EQ(match_route(request("GET", "/v1/models/abc"), kOpen)->argument, "abc");
  EXPECT_EQ(match_route(request("GET", "/v1/models/a%2Fb%20c%3A1?x=%41"), kOpen)->argument,
            "a/b c:1");
  EXPECT_EQ(match_route(request("GET", "/v1/models/a%2%zz%"), kOpen)->argument, "a%2%zz%");
  EXPECT_EQ(match_route(request("GET", "/v1/models/a%252Fb"), kOpen)->argument, "a%2Fb") << "once";
  for (const char* target :
       {"/v2/models", "/v1%2fmodels", "/../v1/models", "/V1/models", "*", ""}) {
    EXPECT_EQ(status_of(request("GET", target), kOpen), 404) << target;
  }
}

TEST(ApiRoutes, NamesOfRoutesHoldNothingOfTheClient) {
  EXPECT_EQ(route_name("//v1/completions/?key=k"), "/v1/completions");
  EXPECT_EQ(route_name("/v1/models/secret"), "/v1/models/");
  EXPECT_EQ(route_name("/secret"), "");
  EXPECT_EQ(route_name(""), "");
}

TEST(ApiRoutes, AWrongMethodIsA405) {
  EXPECT_EQ(status_of(request("GET", "/v1/chat/completions"), kOpen), 405);
  EXPECT_EQ(status_of(request("POST", "/metrics"), kOpen), 405);
  EXPECT_EQ(status_of(request("DELETE", "/v1/models/x"), kOpen), 405);
  EXPECT_EQ(status_of(request("OPTIONS", "/v1/models"), kOpen), 405);
  EXPECT_EQ(status_of(request("HEAD", "/v1/models"), kOpen), 200);
  EXPECT_EQ(allowed_methods("/v1//completions/"), "POST");
  EXPECT_EQ(allowed_methods("/metrics"), "GET, HEAD");
}

TEST(ApiRoutes, NoSpellingOfARouteGoesAroundTheKey) {
  for (const char* path :
       {"/v1/models", "/models", "/v1/models/m", "/v1/chat/completions", "/chat/completions",
        "/v1/completions", "/tokenize", "/detokenize", "/apply-template", "/props", "/metrics",
        "/karez/stats", "/slots", "/nothing", "/health/x"}) {
    for (const std::string& target :
         {std::string(path), std::string(path) + "/", "/" + std::string(path),
          std::string(path) + "?x=1", "/health/.." + std::string(path)}) {
      for (const char* method : {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"}) {
        for (const char* key : {"", "Bearer ", "Bearer k", "Bearer k11", "k1", "Basic k1"}) {
          EXPECT_EQ(status_of(request(method, target, key), kKeyed), 401)
              << method << " " << target << " " << key;
        }
      }
    }
  }
  EXPECT_EQ(status_of(request("POST", "/health"), kKeyed), 401);
}

TEST(ApiRoutes, AnyOfTheKeysOpensAndIsTold) {
  EXPECT_EQ(match_route(request("GET", "/props", "Bearer k1"), kKeyed)->key_index, 0);
  EXPECT_EQ(match_route(request("GET", "/props", "bearer key-two"), kKeyed)->key_index, 1);
  EXPECT_EQ(match_route(request("GET", "/props"), kOpen)->key_index, -1);
}

TEST(ApiRoutes, HealthAndThePageNeedNoKey) {
  EXPECT_EQ(status_of(request("GET", "/health"), kKeyed), 200);
  EXPECT_EQ(status_of(request("HEAD", "/v1/health"), kKeyed), 200);
  EXPECT_EQ(status_of(request("GET", "/"), kKeyed), 200);
}

TEST(ApiRoutes, WithoutAKeyOnlyHostNamesOfThisMachineAreServed) {
  HttpRequest made = request("GET", "/v1/models");
  for (const char* host : {"localhost", "localhost:8080", "LOCALHOST", "127.0.0.1",
                           "127.0.0.2:8080", "[::1]:8080", "[0:0:0:0:0:0:0:1]", ""}) {
    made.host = host;
    EXPECT_EQ(status_of(made, kOpen), 200) << host;
  }
  for (const char* host :
       {"evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example",
        "127.evil.example", "[::2]", "[::1", "127.0.0.1]"}) {
    made.host = host;
    EXPECT_EQ(status_of(made, kOpen), 403) << host;
  }
  made.host = "evil.example";
  EXPECT_EQ(status_of(made, {.api_keys = {}, .cors_origins = {}, .loopback_only = false}), 200);
}

TEST(ApiRoutes, WithoutAKeyOtherOriginsAreRefused) {
  HttpRequest made = request("POST", "/v1/chat/completions");
  for (const char* origin : {"http://evil.example", "null", "http://localhost:9999"}) {
    made.origin = origin;
    EXPECT_EQ(status_of(made, kOpen), 403) << origin;
    EXPECT_TRUE(cors_headers(made, kOpen).empty());
  }
  made.origin = "http://127.0.0.1:8080";
  EXPECT_EQ(status_of(made, kOpen), 200);
}

TEST(ApiRoutes, ListedOriginsGetCorsHeadersAndPreflights) {
  const AccessRules rules = {
      .api_keys = {"k"}, .cors_origins = {"https://app.example"}, .loopback_only = true};
  HttpRequest made = request("OPTIONS", "/v1/chat/completions");
  made.origin = "https://app.example";
  const auto match = match_route(made, rules);
  ASSERT_TRUE(match.has_value());
  EXPECT_EQ(match->route, Route::kPreflight);
  ASSERT_FALSE(cors_headers(made, rules).empty());
  EXPECT_EQ(cors_headers(made, rules)[0].second, "https://app.example");
  const auto allowed = [&] {
    const auto headers = cors_headers(made, rules);
    return std::ranges::find(headers, "Access-Control-Allow-Headers",
                             &std::pair<std::string, std::string>::first)
        ->second;
  };
  EXPECT_EQ(allowed(), "Authorization, Content-Type");
  made.preflight_headers = "authorization,content-type,x-stainless-lang, x_y";
  EXPECT_EQ(allowed(), made.preflight_headers) << "clients add headers of their own";
  made.preflight_headers = "a\r\nSet-Cookie: b";
  EXPECT_EQ(allowed(), "Authorization, Content-Type");
  made.origin = "https://other.example";
  EXPECT_EQ(status_of(made, rules), 401);
  EXPECT_TRUE(cors_headers(made, rules).empty());
}

}  // namespace
}  // namespace karez
