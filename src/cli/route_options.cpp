#include "cli/route_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <utility>

#include "cli/flag_checks.h"

namespace karez {
namespace {

Expected<std::vector<NodeUrl>> urls_of(const char* flag, const std::vector<std::string>& texts) {
  std::vector<NodeUrl> urls;
  for (const std::string& text : texts) {
    auto url = parse_node_url(text);
    if (!url) {
      return fail(url.error().code(), fmt::format("{} {}", flag, url.error().message()));
    }
    urls.push_back(std::move(*url));
  }
  return urls;
}

}  // namespace

void add_route_flags(CLI::App& command, RouteFlags& flags) {
  const std::string group = "Nodes";
  const auto urls = [&](const char* name, std::vector<std::string>& value, const char* help) {
    command.add_option(name, value, help)
        ->type_name("URL")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->group(group);
  };
  urls("--prefill", flags.prefill,
       "A node that prefills (karez serve --kv-role kv_producer), http://HOST:PORT; repeated, or a "
       "comma list. None: decode nodes prefill for themselves");
  urls("--decode", flags.decode,
       "A node that answers (--kv-role kv_consumer); repeated, or a comma list");
  command
      .add_option("--node-timeout", flags.node_timeout_seconds,
                  "Seconds without an answer to health checks after which a node's requests are "
                  "given up")
      ->capture_default_str()
      ->type_name("N")
      ->group(group);
  add_http_flags(command, flags.http);
}

Expected<CheckedRoute> check_route_flags(const RouteFlags& flags) {
  constexpr std::int64_t kMaxSeconds = 86'400;
  CheckedRoute checked;
  RouterOptions& router = checked.router;
  RangeCheck in_range;
  router.route.node_timeout =
      std::chrono::seconds(in_range("--node-timeout", flags.node_timeout_seconds, 1, kMaxSeconds));
  if (!in_range.result()) {
    return fail(in_range.result().error());
  }
  auto prefill = urls_of("--prefill", flags.prefill);
  if (!prefill) {
    return fail(std::move(prefill.error()));
  }
  router.prefill = std::move(*prefill);
  auto decode = urls_of("--decode", flags.decode);
  if (!decode) {
    return fail(std::move(decode.error()));
  }
  router.decode = std::move(*decode);
  if (auto valid = router.validate(); !valid) {
    return fail(std::move(valid.error()));
  }
  auto http = check_http_flags(flags.http);
  if (!http) {
    return fail(std::move(http.error()));
  }
  router.http = std::move(http->http);
  router.route.access = std::move(http->access);
  checked.shutdown_timeout = http->shutdown_timeout;
  return checked;
}

}  // namespace karez
