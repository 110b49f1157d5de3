// The flags of `karez route`.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/http_flags.h"
#include "route/router.h"

namespace CLI {
class App;
}

namespace karez {

// As typed.
struct RouteFlags {
  std::vector<std::string> prefill;
  std::vector<std::string> decode;
  std::int64_t node_timeout_seconds = 30;
  HttpFlags http;
};

struct CheckedRoute {
  RouterOptions router;
  std::chrono::seconds shutdown_timeout{0};
};

void add_route_flags(CLI::App& command, RouteFlags& flags);

// Fails: kInvalidArgument naming the flag, its value and what is allowed; as check_http_flags().
Expected<CheckedRoute> check_route_flags(const RouteFlags& flags);

}  // namespace karez
