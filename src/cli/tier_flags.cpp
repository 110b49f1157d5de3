#include "cli/tier_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <utility>

#include "cli/flag_checks.h"

namespace karez {
namespace {

Expected<std::int64_t> size_of(const char* flag, const std::string& text) {
  auto bytes = optional_size(flag, text);
  if (!bytes) {
    return fail(std::move(bytes.error()));
  }
  if (*bytes == 0) {
    return fail(
        StatusCode::kInvalidArgument,
        fmt::format("{} is {}, allowed are sizes above 0; leave it out for none", flag, text));
  }
  return bytes->value_or(0);
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
  text("--kv-disk-bytes", flags.disk_bytes, "SIZE",
       "The same in a file of so many bytes, which has no name and goes with the process");
  text("--kv-disk-path", flags.disk_path, "DIR",
       "The folder of what is on disk (default for that file: the working directory)");
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

void add_store_flags(CLI::App& command, TierFlags& flags) {
  const std::string group = "Tiers below --kv-fast-bytes";
  CLI::Option* path = command.get_option("--kv-disk-path");
  path->description(
      "Keep the KV of prompt beginnings in this folder, also for the next process, in "
      "--kv-disk-bytes "
      "together");
  // An empty one, as of a variable that is not set, would mean that nothing is kept.
  path->check([](const std::string& folder) {
    return folder.empty() ? std::string("it is empty, allowed is the name of a folder")
                          : std::string();
  });
  command
      .add_option("--kv-disk-prefix-bytes", flags.disk_prefix_bytes,
                  "So much of --kv-disk-bytes for them, the rest for a file with the full KV of "
                  "running requests (default: all)")
      ->type_name("SIZE")
      ->group(group);
  command
      .add_option("--kv-remote", flags.remote,
                  "Keep them in a Redis server that other nodes use too: "
                  "redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE], rediss:// with TLS. Others on "
                  "this machine see command lines, so a password better by the environment")
      ->envname("KAREZ_KV_REMOTE")
      ->type_name("URL")
      ->group(group);
  const auto file = [&](const char* name, std::string& value, const char* help) {
    command.add_option(name, value, help)->type_name("FILE")->group(group);
  };
  file("--kv-remote-ca", flags.remote_ca,
       "Certificates (PEM) that a rediss:// server's must come from (default: the system's)");
  file("--kv-remote-cert", flags.remote_cert, "Certificate (PEM) to show to a rediss:// server");
  file("--kv-remote-key", flags.remote_key, "Its private key (PEM)");
  command
      .add_option("--kv-load-timeout", flags.load_timeout_seconds,
                  "Seconds that a request waits for its stored beginning; the rest is computed")
      ->capture_default_str()
      ->type_name("SECONDS")
      ->group(group);
}

Expected<StoreOptions> check_store_flags(TierFlags& flags) {
  StoreOptions options;
  const auto needs = [](const char* flag, const std::string& value, const char* what) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("{} is {}, which needs {}", flag, value, what));
  };
  if (!(flags.load_timeout_seconds >= 0.001 && flags.load_timeout_seconds <= 3600)) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("--kv-load-timeout is {}, allowed are 0.001 to 3600 seconds",
                            flags.load_timeout_seconds));
  }
  options.load_limit_seconds = flags.load_timeout_seconds;
  if (!flags.remote.empty()) {
    auto address = parse_redis_address(flags.remote);  // the URL may have a password in it
    if (!address) {
      return fail(address.error().code(), "--kv-remote: " + address.error().message());
    }
    if (!flags.disk_path.empty()) {
      return fail(
          StatusCode::kInvalidArgument,
          fmt::format("--kv-remote is given and --kv-disk-path is {}; allowed is one of the "
                      "two",
                      flags.disk_path));
    }
    options.remote = std::move(*address);
  }
  options.remote_tls = {flags.remote_ca, flags.remote_cert, flags.remote_key};
  for (const auto& [flag, value] : {std::pair("--kv-remote-ca", &flags.remote_ca),
                                    std::pair("--kv-remote-cert", &flags.remote_cert),
                                    std::pair("--kv-remote-key", &flags.remote_key)}) {
    if (!value->empty() && !(options.remote && options.remote->use_tls)) {
      return needs(flag, *value, "--kv-remote rediss://...");
    }
  }
  if (flags.remote_cert.empty() != flags.remote_key.empty()) {
    return flags.remote_key.empty()
               ? needs("--kv-remote-cert", flags.remote_cert, "--kv-remote-key")
               : needs("--kv-remote-key", flags.remote_key, "--kv-remote-cert");
  }
  if (flags.disk_path.empty()) {
    if (!flags.disk_prefix_bytes.empty()) {
      return needs("--kv-disk-prefix-bytes", flags.disk_prefix_bytes, "--kv-disk-path");
    }
    return options;
  }
  if (flags.disk_bytes.empty()) {
    return needs("--kv-disk-path", flags.disk_path, "--kv-disk-bytes, the cap of what it holds");
  }
  const auto all = size_of("--kv-disk-bytes", flags.disk_bytes);
  if (!all) {
    return fail(all.error());
  }
  const auto prefixes = size_of("--kv-disk-prefix-bytes", flags.disk_prefix_bytes);
  if (!prefixes) {
    return fail(prefixes.error());
  }
  if (*prefixes > *all) {
    return fail(
        StatusCode::kInvalidArgument,
        fmt::format("--kv-disk-prefix-bytes is {}, allowed are sizes up to --kv-disk-bytes, {}",
                    flags.disk_prefix_bytes, flags.disk_bytes));
  }
  options.disk_directory = flags.disk_path;
  options.disk_bytes = *prefixes > 0 ? *prefixes : *all;
  options.disk_bytes_flag = *prefixes > 0 ? "--kv-disk-prefix-bytes" : "--kv-disk-bytes";
  const std::int64_t rest = *all - options.disk_bytes;
  flags.disk_bytes = rest > 0 ? fmt::format("{}", rest) : std::string();
  flags.disk_path = rest > 0 ? flags.disk_path : std::string();
  return options;
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
  if (!flags.disk_path.empty() && *disk == 0) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("--kv-disk-path is {}, which needs --kv-disk-bytes", flags.disk_path));
  }
  options.disk_directory = flags.disk_path.empty() ? "." : flags.disk_path;
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
