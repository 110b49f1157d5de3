#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <memory>
#include <thread>
#include <utility>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/report.h"
#include "cli/route_options.h"

namespace karez {
namespace {

Expected<int> route(const RouteFlags& typed) {
  const InterruptGuard interrupt;
  // A reader of standard output that goes away is not a reason to end.
  std::signal(SIGPIPE, SIG_IGN);
  auto checked = check_route_flags(typed);
  if (!checked) {
    return fail(std::move(checked.error()));
  }
  auto router = Router::start(std::move(checked->router));
  if (!router) {
    return fail(std::move(router.error()));
  }
  const auto nodes = (*router)->nodes();
  const auto healthy = std::ranges::count_if(nodes, &NodeState::is_healthy);
  fmt::print("karez: router at {} ({} nodes, {} healthy)\n", (*router)->url(), nodes.size(),
             healthy);
  std::fflush(stdout);
  while (!interrupt.flag()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  if (!(*router)->shut_down(checked->shutdown_timeout)) {
    report_note("some answers were cut at --shutdown-timeout");
  }
  return kExitOk;
}

}  // namespace

void add_route_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "route", "One address for many servers: prefill on some, decode on others");
  auto flags = std::make_shared<RouteFlags>();
  add_route_flags(*command, *flags);
  command->callback([flags, &exit_code] {
    auto code = route(*flags);
    exit_code = code ? *code : report_error(code.error());
  });
}

}  // namespace karez
