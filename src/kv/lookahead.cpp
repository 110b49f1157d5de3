#include "kv/lookahead.h"

#include <fmt/format.h>

#include <algorithm>

namespace karez {

namespace {
constexpr std::string_view kOff = "off";
}

std::string_view to_string(LookaheadSource source) {
  switch (source) {
    case LookaheadSource::kPrevious:
      return "previous";
    case LookaheadSource::kDraft:
      return "draft";
    case LookaheadSource::kProbe:
      return "probe";
    case LookaheadSource::kSelf:
      return "self";
    case LookaheadSource::kLayer:
      return "layer";
  }
  return "unknown";
}

std::string to_string(const LookaheadSources& sources) {
  std::string text;
  for (const LookaheadSource source : kLookaheadSources) {
    if (sources.contains(source)) {
      text += text.empty() ? "" : ",";
      text += to_string(source);
    }
  }
  return text.empty() ? std::string(kOff) : text;
}

Expected<LookaheadSources> parse_lookahead(std::string_view text) {
  LookaheadSources sources;
  if (text == kOff) {
    return sources;
  }
  std::string_view rest = text;
  while (true) {
    const std::size_t comma = rest.find(',');
    const std::string_view name = rest.substr(0, comma);
    const auto source = std::ranges::find_if(
        kLookaheadSources, [name](LookaheadSource known) { return to_string(known) == name; });
    if (source == kLookaheadSources.end()) {
      return fail(StatusCode::kInvalidArgument,
                  fmt::format("the lookahead is '{}': '{}' is no source; allowed are off, or a "
                              "comma list of previous, draft, probe, self, layer",
                              text, name));
    }
    sources.add(*source);
    if (comma == std::string_view::npos) {
      return sources;
    }
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace karez
