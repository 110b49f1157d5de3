// The program: finds the command and runs it.
#include <fmt/format.h>
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/report.h"

namespace karez {
namespace {

// llama.cpp's short names with several letters, which the argument parser would read as a row of
// one-letter flags.
constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kShortNames = {{
    {"-ctk", "--cache-type-k"},
    {"-ctv", "--cache-type-v"},
    {"-ub", "--ubatch-size"},
    {"-sys", "--system-prompt"},
    {"-md", "--spec-draft-model"},
    {"-np", "--parallel"},
}};

// Flags whose value is free text: it may look like one of the names above.
constexpr std::array<std::string_view, 7> kTextFlags = {
    "-p", "--prompt", "--stop", "--grammar", "-sys", "--system-prompt", "-f"};

// In the order that the parser takes: the last argument first.
std::vector<std::string> reversed_arguments(int argc, char** argv) {
  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  std::string_view previous;
  for (std::string& argument : arguments) {
    const bool is_text = std::ranges::find(kTextFlags, previous) != kTextFlags.end();
    const auto* name = std::ranges::find(kShortNames, std::string_view(argument),
                                         &std::pair<std::string_view, std::string_view>::first);
    if (!is_text && name != kShortNames.end()) {
      argument = name->second;
    }
    previous = is_text ? std::string_view() : std::string_view(argument);
  }
  std::ranges::reverse(arguments);
  return arguments;
}

// Of a flag that is given twice the last one counts, as in llama.cpp.
void let_the_last_count(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    for (CLI::Option* option : command->get_options()) {
      if (option->get_multi_option_policy() == CLI::MultiOptionPolicy::Throw &&
          option->get_items_expected_max() == 1) {
        option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
      }
    }
  }
}

// " generate", or nothing.
std::string chosen_command(const CLI::App& app) {
  const auto commands = app.get_subcommands();
  return commands.empty() ? std::string() : " " + commands.front()->get_name();
}

// A flag rather than the value that may follow it.
std::string first_unknown(const CLI::App& app) {
  std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
  const auto flag = std::ranges::find_if(
      unknown, [](const std::string& argument) { return argument.starts_with('-'); });
  return flag != unknown.end() ? *flag : unknown.empty() ? std::string() : unknown.front();
}

// Empty, or what is wrong with the first argument as the name of a command.
std::string wrong_command(const CLI::App& app, const std::vector<std::string>& reversed) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  if (reversed.empty()) {
    return fmt::format("a command is missing, there are {} (see karez --help)",
                       fmt::join(names, ", "));
  }
  const std::string& first = reversed.back();
  if (first.starts_with('-') || std::ranges::find(names, first) != names.end()) {
    return {};
  }
  return fmt::format("there is no command '{}', there are {} (see karez --help)", first,
                     fmt::join(names, ", "));
}

int run(int argc, char** argv) {
  CLI::App app("LLM inference on the CPU with a paged KV cache under a hard memory cap.", "karez");
  app.set_version_flag("--version", fmt::format("karez {}", KAREZ_VERSION));
  app.require_subcommand(1);
  app.option_defaults()->always_capture_default(false);
  int exit_code = kExitOk;
  add_serve_command(app, exit_code);
  add_route_command(app, exit_code);
  add_generate_command(app, exit_code);
  add_inspect_command(app, exit_code);
  add_bench_command(app, exit_code);
  add_eval_command(app, exit_code);
  let_the_last_count(app);
  const std::vector<std::string> arguments = reversed_arguments(argc, argv);
  if (const std::string wrong = wrong_command(app, arguments); !wrong.empty()) {
    return report_error(wrong, kExitBadInput);
  }
  try {
    app.parse(std::vector<std::string>(arguments));
  } catch (const CLI::Success& asked) {  // --help, --version
    app.exit(asked);
  } catch (const CLI::ExtrasError&) {
    return report_error(fmt::format("unknown argument '{}' (see karez{} --help)",
                                    first_unknown(app), chosen_command(app)),
                        kExitBadInput);
  } catch (const CLI::ParseError& error) {
    return report_error(fmt::format("{} (see karez{} --help)", error.what(), chosen_command(app)),
                        kExitBadInput);
  }
  if (const auto flushed = flush_stdout(); !flushed && exit_code == kExitOk) {
    return report_error(flushed.error());
  }
  return exit_code;
}

// Manifests and key indexes come and go with requests, megabytes each. After the first of them
// glibc would take such sizes from its heap, and what is freed in the middle of that stays with the
// process.
void give_back_large_memory() {
#ifdef __GLIBC__
  constexpr int kLargeBytes = 1 << 20;
  mallopt(M_MMAP_THRESHOLD, kLargeBytes);
#endif
}

}  // namespace
}  // namespace karez

int main(int argc, char** argv) {
  karez::give_back_large_memory();
  try {
    return karez::run(argc, argv);
  } catch (const std::bad_alloc&) {
    return karez::report_error("out of memory", karez::kExitFailure);
  } catch (const std::exception& error) {
    return karez::report_error(error.what(), karez::kExitFailure);
  }
}
