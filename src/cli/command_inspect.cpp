#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "cli/commands.h"
#include "cli/inspect_report.h"
#include "cli/report.h"
#include "cli/text_file.h"
#include "model/gguf_file.h"

namespace karez {
namespace {

struct InspectFlags {
  std::string model_path;
  std::vector<std::string> kv_fast_bytes = {"64MiB", "256MiB", "1GiB", "4GiB"};
  std::string json_path;
};

Expected<std::vector<std::int64_t>> read_caps(const InspectFlags& flags) {
  std::vector<std::int64_t> caps;
  for (const std::string& text : flags.kv_fast_bytes) {
    const auto bytes = parse_bytes(text);
    if (!bytes) {
      return fail(bytes.error().code(),
                  fmt::format("--kv-fast-bytes: {}", bytes.error().message()));
    }
    caps.push_back(*bytes);
  }
  return caps;
}

Expected<void> inspect(const InspectFlags& flags) {
  const auto caps = read_caps(flags);
  if (!caps) {
    return fail(caps.error());
  }
  const auto file = GgufFile::open(flags.model_path);
  if (!file) {
    return fail(file.error());
  }
  const auto report = inspect_model(*file, *caps);
  if (!report) {
    return fail(report.error());
  }
  if (!flags.json_path.empty()) {
    if (auto written = write_text_file(flags.json_path, to_json(*report)); !written) {
      return written;
    }
  }
  fmt::print("{}", to_text(*report));
  return {};
}

}  // namespace

void add_inspect_command(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("inspect", "Show what is in a model file and what fits into a KV cap");
  auto flags = std::make_shared<InspectFlags>();
  command->add_option("-m,--model,MODEL", flags->model_path, "GGUF model file")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--kv-fast-bytes", flags->kv_fast_bytes,
                   "Caps of the KV cache to look at, such as 512MiB (64MiB,256MiB,1GiB,4GiB)")
      ->delimiter(',')
      ->type_name("BYTES");
  command->add_option("--json", flags->json_path, "Write all figures to this file")
      ->type_name("FILE");
  command->callback([flags, &exit_code] {
    const auto done = inspect(*flags);
    exit_code = done ? kExitOk : report_error(done.error());
  });
}

}  // namespace karez
