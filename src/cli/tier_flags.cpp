#include "cli/tier_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "base/bytes.h"

namespace karez {
namespace {

Expected<std::int64_t> size_of(const char* flag, const std::string& text) {
  if (text.empty()) {
    return 0;
  }
  auto bytes = parse_bytes(text);
  if (!bytes) {
    return fail(bytes.error().code(), fmt::format("{}: {}", flag, bytes.error().message()));
  }
  if (*bytes <= 0) {
    return fail(
        StatusCode::kInvalidArgument,
        fmt::format("{} is {}, allowed are sizes above 0; leave it out for none", flag, text));
  }
  return *bytes;
}

}  // namespace

void add_tier_flags(CLI::App& command, TierFlags& flags) {
  const auto text = [&](const char* name, std::string& value, const char* type, const char* help) {
    command.add_option(name, value, help)->type_name(type)->group("Tiers below --kv-fast-bytes");
  };
  text("--kv-host-bytes", flags.host_bytes, "SIZE",
       "Keep the full KV in so much host memory; the fast tier holds what the next step reads");
  text("--kv-host-throttle", flags.host_throttle, "RATE,LATENCY",
       "Make it as slow as a medium to be studied: 2GiB/s,50us");
  text("--kv-disk-bytes", flags.disk_bytes, "SIZE", "The same in a file of so many bytes");
  text("--kv-disk-dir", flags.disk_directory, "DIR",
       "Where that file is; it has no name and goes with the process (the working directory)");
  command
      .add_option("--lookahead", flags.lookahead,
                  "Fetch ahead of need, by guesses from: previous (the last query's runners-up), "
                  "draft (those of draft rows), probe (a row of its own), self (the model's own "
                  "drafts), layer (the next layer's query, early); off; several with commas")
      ->capture_default_str()
      ->type_name("SOURCES")
      ->group("Tiers below --kv-fast-bytes");
  text("--fetch-cap", flags.fetch_cap, "SIZE",
       "Bytes fetched ahead in a step at most (default: what the tier moves in 0.8 of a step)");
  command
      .add_option("--on-miss", flags.on_miss,
                  "wait: a token reads all that it selects, wherever it is; bounded=N: in each "
                  "layer and head it waits for the N heaviest blocks that are not in the fast tier "
                  "and does without the others, which is counted")
      ->capture_default_str()
      ->type_name("HOW")
      ->group("Tiers below --kv-fast-bytes");
}

Expected<HomeOptions> check_tier_flags(const TierFlags& flags) {
  HomeOptions options;
  const auto host = size_of("--kv-host-bytes", flags.host_bytes);
  const auto disk = size_of("--kv-disk-bytes", flags.disk_bytes);
  for (const auto* size : {&host, &disk}) {
    if (!*size) {
      return fail(size->error());
    }
  }
  options.host_bytes = *host;
  options.disk_bytes = *disk;
  if (*host > 0 && *disk > 0) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("--kv-host-bytes is {} and --kv-disk-bytes is {}; allowed is one of "
                            "the two",
                            flags.host_bytes, flags.disk_bytes));
  }
  if (!flags.disk_directory.empty() && *disk == 0) {
    return fail(
        StatusCode::kInvalidArgument,
        fmt::format("--kv-disk-dir is {}, which needs --kv-disk-bytes", flags.disk_directory));
  }
  options.disk_directory = flags.disk_directory.empty() ? "." : flags.disk_directory;
  if (!flags.host_throttle.empty()) {
    if (*host == 0) {
      return fail(StatusCode::kInvalidArgument,
                  fmt::format("--kv-host-throttle is {}, which needs --kv-host-bytes",
                              flags.host_throttle));
    }
    const auto throttle = parse_throttle(flags.host_throttle);
    if (!throttle) {
      return fail(throttle.error().code(), "--kv-host-throttle: " + throttle.error().message());
    }
    options.throttle = *throttle;
  }
  return options;
}

Expected<void> check_lookahead(const TierFlags& flags, SpecOptions& spec, HomeOptions& home,
                               SparseOptions& sparse) {
  const auto sources = parse_lookahead(flags.lookahead);
  if (!sources) {
    return fail(sources.error().code(), "--lookahead: " + sources.error().message());
  }
  const auto needs = [&](std::string_view what) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("--lookahead is {}, which needs {}", flags.lookahead, what));
  };
  if (!sources->is_empty() && !home.is_on()) {
    return needs("--kv-host-bytes or --kv-disk-bytes: there is nothing to fetch from");
  }
  if (!sources->is_empty() && !sparse.is_on()) {
    return needs("--token-budget: a token that reads everything needs no guesses");
  }
  if (sources->contains(LookaheadSource::kDraft) && spec.type == SpecType::kNone) {
    return needs("--spec-type: there are no drafts");
  }
  if (sources->contains(LookaheadSource::kSelf) && spec.type != SpecType::kSelf) {
    return needs("--spec-type self");
  }
  if (sources->contains(LookaheadSource::kLayer) && !codes_tokens(sparse.block_index)) {
    return needs("--block-index r2 or r3");
  }
  const auto cap = size_of("--fetch-cap", flags.fetch_cap);
  if (!cap) {
    return fail(cap.error());
  }
  if (*cap > 0 && sources->is_empty()) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("--fetch-cap is {}, which needs --lookahead", flags.fetch_cap));
  }
  home.lookahead = {*sources, *cap};
  spec.lengths.num_probes = sources->contains(LookaheadSource::kProbe) ? 1 : 0;
  add_what_lookahead_needs(*sources, sparse);
  return {};
}

Expected<OnMiss> check_on_miss(const TierFlags& flags, const HomeOptions& home,
                               SparseOptions& sparse) {
  const auto on_miss = parse_on_miss(flags.on_miss);
  if (!on_miss) {
    return fail(on_miss.error().code(), "--on-miss: " + on_miss.error().message());
  }
  if (on_miss->bound && !sparse.is_on()) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("--on-miss is {}, which needs --token-budget: only tokens that select "
                            "what they read can do without some of it",
                            flags.on_miss));
  }
  if (on_miss->bound && !home.is_on()) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("--on-miss is {}, which needs --kv-host-bytes or --kv-disk-bytes: "
                            "without a tier below the fast one nothing is ever missing",
                            flags.on_miss));
  }
  sparse.list_masses = sparse.list_masses || on_miss->bound.has_value();
  return *on_miss;
}

}  // namespace karez
