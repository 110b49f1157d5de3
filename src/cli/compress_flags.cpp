#include "cli/compress_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <limits>
#include <utility>

#include "cli/flag_checks.h"

namespace karez {
namespace {

Expected<int> to_int(const char* flag, std::int64_t value) {
  if (value < 0 || value > std::numeric_limits<int>::max()) {
    return fail(StatusCode::kInvalidArgument, fmt::format("{} is {}, allowed are 0 to {}", flag,
                                                          value, std::numeric_limits<int>::max()));
  }
  return static_cast<int>(value);
}

}  // namespace

void add_compress_flags(CLI::App& command, CompressFlags& flags, const char* compress_help) {
  command.add_flag("--compress", flags.compress, compress_help)->group(kCompressionGroup);
  const auto add = [&](const char* name, auto& value, const char* type, const char* help) {
    CLI::Option* option =
        command.add_option(name, value, help)->type_name(type)->group(kCompressionGroup);
    flags.others.push_back(option);
    return option;
  };
  add("--compress-keep", flags.keep, "RATIO", "Pairs of a window that are kept as they are")
      ->capture_default_str();
  add("--compress-window", flags.window_tokens, "N", "Generated tokens that are compressed at once")
      ->capture_default_str();
  add("--compress-recent", flags.recent_tokens, "N", "Tokens behind a window before it is")
      ->capture_default_str();
  add("--compress-per-step", flags.sequences_per_step, "N",
      "Sequences that are worked on in one step")
      ->capture_default_str();
  flags.others.push_back(
      command.add_flag("--compress-prompt", flags.prompt, "Prompts are compressed too")
          ->group(kCompressionGroup));
  const CompressionOptions defaults;
  const auto choice = [&](const char* name, std::string& value, const char* help,
                          std::string_view default_name) {
    add(name, value, "NAME", help)->default_str(std::string(default_name));
  };
  choice("--compress-score", flags.score,
         "What pairs are chosen by: bidirectional causal last-queries recent random",
         to_string(defaults.score));
  choice("--compress-chunk", flags.chunk, "How: token2chunk, none, fixed=N", defaults.chunk_name());
  choice("--compress-archive", flags.archive,
         "Pairs that are not kept: r4 (4 bits a number), off (dropped)",
         to_string(defaults.archive));
}

Expected<CompressionOptions> check_compress_flags(const CompressFlags& flags) {
  CompressionOptions options;
  options.keep = flags.keep;
  options.compresses_prompt = flags.prompt;
  for (const auto& [flag, from, to] :
       {std::tuple{"--compress-window", flags.window_tokens, &options.window_tokens},
        {"--compress-recent", flags.recent_tokens, &options.recent_tokens},
        {"--compress-per-step", flags.sequences_per_step, &options.sequences_per_step}}) {
    const auto value = to_int(flag, from);
    if (!value) {
      return fail(value.error());
    }
    *to = *value;
  }
  if (!flags.score.empty()) {
    const auto score = parse_compress_score(flags.score);
    if (!score) {
      return fail(score.error().code(), "--" + score.error().message());
    }
    options.score = *score;
  }
  if (!flags.chunk.empty()) {
    if (auto set = as_flag(options.set_chunk(flags.chunk)); !set) {
      return fail(std::move(set.error()));
    }
  }
  if (!flags.archive.empty()) {
    const auto archive = parse_compress_archive(flags.archive);
    if (!archive) {
      return fail(archive.error().code(), "--" + archive.error().message());
    }
    options.archive = *archive;
  }
  if (auto valid = as_flag(options.validate()); !valid) {
    return fail(std::move(valid.error()));
  }
  return options;
}

Expected<void> check_compression_is_used(const CompressFlags& flags) {
  for (const CLI::Option* option : flags.others) {
    if (!flags.compress && option->count() > 0) {
      return fail(StatusCode::kInvalidArgument,
                  fmt::format("{} has no effect without --compress", option->get_name()));
    }
  }
  return {};
}

}  // namespace karez
