#include "cli/eval_generate_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>

#include "cli/compress_flags.h"
#include "cli/flag_checks.h"

namespace karez {
namespace {

constexpr std::string_view kAll = "all";

// Names without repetition; those of `all` for the name "all", the default one for none.
std::vector<std::string> names_of(const std::vector<std::string>& given,
                                  const std::vector<std::string>& all,
                                  const std::string& default_name) {
  std::vector<std::string> names;
  const auto add = [&](const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      names.push_back(name);
    }
  };
  for (const std::string& name : given) {
    if (name == kAll) {
      std::for_each(all.begin(), all.end(), add);
    } else {
      add(name);
    }
  }
  if (names.empty()) {
    names.push_back(default_name);
  }
  return names;
}

// The most recent pairs are a run already, and runs of them the same pairs. Random runs are not
// random pairs.
bool is_chunked(CompressScore score) { return score != CompressScore::kRecent; }

}  // namespace

void add_eval_generate_flags(CLI::App& command, EvalGenerateFlags& flags) {
  flags.generate =
      command
          .add_option("--generate", flags.generated_tokens,
                      "Decode the last N tokens as if generated and compress them as they age (all "
                      "but the first 64)")
          ->type_name("N")
          ->expected(0, 1)
          ->group(kCompressionGroup);
  const auto add = [&](const char* name, auto& value, const char* type, const char* help) {
    CLI::Option* option =
        command.add_option(name, value, help)->type_name(type)->group(kCompressionGroup);
    flags.others.push_back(option);
    return option;
  };
  add("--compress-keep", flags.keeps, "RATIO,..", "Pairs of a window that are kept (0.75,0.5,0.2)")
      ->delimiter(',');
  add("--compress-score", flags.scores, "NAME,..",
      "What pairs are chosen by: bidirectional causal last-queries recent random, or all "
      "(bidirectional)")
      ->delimiter(',');
  add("--compress-chunk", flags.chunks, "NAME,..",
      "How: token2chunk, none, fixed=N, or all (fixed=16); recent pairs are one run in any case")
      ->delimiter(',');
  add("--compress-archive", flags.archives, "NAME,..",
      "Pairs that are not kept: r4, off, or all (r4)")
      ->delimiter(',');
  add("--compress-window", flags.window_tokens, "N", "Tokens that are compressed at once")
      ->capture_default_str();
  add("--compress-recent", flags.recent_tokens, "N", "Tokens behind a window before it is")
      ->capture_default_str();
}

bool is_given(const EvalGenerateFlags& flags) { return flags.generate->count() > 0; }

Expected<std::vector<CompressionOptions>> compressions_of(const EvalGenerateFlags& flags) {
  std::vector<CompressionOptions> all;
  if (!is_given(flags)) {
    for (const CLI::Option* option : flags.others) {
      if (option->count() > 0) {
        return fail(StatusCode::kInvalidArgument,
                    fmt::format("{} has no effect without --generate", option->get_name()));
      }
    }
    return all;
  }
  if (flags.generated_tokens < 0) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("--generate is {}, allowed are 0 and more", flags.generated_tokens));
  }
  const CompressionOptions defaults;
  const auto scores =
      names_of(flags.scores, {"bidirectional", "causal", "last-queries", "recent", "random"},
               std::string(to_string(defaults.score)));
  const auto chunks =
      names_of(flags.chunks, {"token2chunk", "none", "fixed=16"}, defaults.chunk_name());
  for (const std::string& chunk : chunks) {  // whether or not a score has use for it
    if (auto set = as_flag(CompressionOptions().set_chunk(chunk)); !set) {
      return fail(set.error());
    }
  }
  const auto archives =
      names_of(flags.archives, {"off", "r4"}, std::string(to_string(defaults.archive)));
  for (const std::string& score_name : scores) {
    const auto score = parse_compress_score(score_name);
    if (!score) {
      return fail(score.error().code(), "--" + score.error().message());
    }
    for (const std::string& chunk :
         is_chunked(*score) ? chunks : std::vector<std::string>{"none"}) {
      for (const std::string& archive_name : archives) {
        const auto archive = parse_compress_archive(archive_name);
        if (!archive) {
          return fail(archive.error().code(), "--" + archive.error().message());
        }
        for (const double keep : flags.keeps) {
          CompressionOptions options;
          options.keep = keep;
          options.window_tokens = flags.window_tokens;
          options.recent_tokens = flags.recent_tokens;
          options.score = *score;
          options.archive = *archive;
          if (auto set = as_flag(options.set_chunk(chunk)); !set) {
            return fail(set.error());
          }
          if (auto valid = as_flag(options.validate()); !valid) {
            return fail(valid.error());
          }
          all.push_back(options);
        }
      }
    }
  }
  return all;
}

}  // namespace karez
