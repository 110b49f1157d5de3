#include "engine/bench_variant.h"

#include <fmt/format.h>

#include <charconv>

namespace karez {

std::string BenchVariant::name() const {
  std::string text = is_resident ? "resident" : to_string(sources);
  if (share) {
    text += fmt::format("@{:.4g}%", *share * 100);
  }
  return text;
}

Expected<BenchVariant> parse_bench_variant(std::string_view text) {
  BenchVariant variant;
  const std::size_t at = text.find('@');
  const std::string_view what = text.substr(0, at);
  if (at != std::string_view::npos) {
    const std::string_view share = text.substr(at + 1);
    double percent = 0;
    const auto [end, error] = std::from_chars(share.data(), share.data() + share.size(), percent);
    if (error != std::errc() || std::string_view(end, share.data() + share.size()) != "%" ||
        !(percent > 0 && percent <= 100) || what == "resident") {
      return fail(StatusCode::kInvalidArgument,
                  fmt::format("'{}' is no variant, allowed are resident, and sources with or "
                              "without a share of the KV above 0 and up to 100: layer@30%",
                              text));
    }
    variant.share = percent / 100;
  }
  if (what == "resident") {
    variant.is_resident = true;
    return variant;
  }
  auto sources = parse_lookahead(what);
  if (!sources) {
    return fail(sources.error());
  }
  variant.sources = *sources;
  return variant;
}

}  // namespace karez
