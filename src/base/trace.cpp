#include "base/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

namespace karez {

namespace {

constexpr std::array<std::string_view, kNumTraceRows> kRowNames = {"compute", "demand reads",
                                                                   "prefetch", "write-back"};
// A row's lanes follow it; more than these share the last one.
constexpr std::size_t kMaxLanes = 64;

struct Lanes {
  std::vector<TraceSpan::TimePoint> ends;

  std::size_t take(const TraceSpan& span) {
    std::size_t lane = 0;
    while (lane < ends.size() && ends[lane] > span.begin) {
      ++lane;
    }
    if (lane == ends.size() && lane < kMaxLanes) {
      ends.emplace_back();
    }
    lane = std::min(lane, kMaxLanes - 1);
    ends[lane] = std::max(ends[lane], span.end);
    return lane;
  }
};

// Transfers that were submitted together become one span; outermost spans come first.
std::vector<TraceSpan> merged(const std::vector<TraceSpan>& spans) {
  std::vector<TraceSpan> result;
  std::map<std::pair<TraceRow, std::uint64_t>, std::size_t> places;  // of groups
  for (const TraceSpan& span : spans) {
    if (span.row != TraceRow::kCompute) {
      const auto [place, is_new] = places.try_emplace({span.row, span.group}, result.size());
      if (!is_new) {
        TraceSpan& whole = result[place->second];
        whole.begin = std::min(whole.begin, span.begin);
        whole.end = std::max(whole.end, span.end);
        whole.items += span.items;
        whole.bytes += span.bytes;
        whole.has_failed = whole.has_failed || span.has_failed;
        continue;
      }
    }
    result.push_back(span);
  }
  std::ranges::stable_sort(result, [](const TraceSpan& a, const TraceSpan& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  return result;
}

}  // namespace

void TraceWriter::add(const TraceSpan& span) {
  if (spans_.size() < max_spans_) {
    spans_.push_back(span);
  } else {
    spans_[static_cast<std::size_t>(num_added_) % max_spans_] = span;
  }
  ++num_added_;
}

std::string TraceWriter::to_json() const {
  std::string text = "{\"displayTimeUnit\": \"ms\", \"otherData\": {\"spans_dropped\": ";
  auto out = std::back_inserter(text);
  fmt::format_to(out, "{}}}, \"traceEvents\": [", num_dropped());
  const char* comma = "\n";
  const std::vector<TraceSpan> spans = merged(spans_);
  std::array<Lanes, kNumTraceRows> lanes;
  for (const TraceSpan& span : spans) {
    const auto row = static_cast<std::size_t>(span.row);
    const bool is_transfer = span.row != TraceRow::kCompute;
    const std::size_t lane = row * kMaxLanes + (is_transfer ? lanes[row].take(span) : 0);
    const auto us = [](auto duration) {
      return std::chrono::duration<double, std::micro>(duration).count();
    };
    fmt::format_to(out,
                   "{}{{\"ph\": \"X\", \"pid\": 1, \"tid\": {}, \"name\": \"{}\", \"ts\": {:.3f}, "
                   "\"dur\": {:.3f}, \"args\": {{",
                   comma, lane, span.name, us(span.begin - spans.front().begin),
                   us(span.end - span.begin));
    const char* separator = "";
    const auto argument = [&](std::string_view name, auto value, bool is_there) {
      if (is_there) {
        fmt::format_to(out, "{}\"{}\": {}", separator, name, value);
        separator = ", ";
      }
    };
    argument("layer", span.layer, span.layer >= 0);
    argument(is_transfer ? "blocks" : "rows", span.items, span.items > 0);
    argument("bytes", span.bytes, span.bytes > 0);
    argument("failed", span.has_failed, span.has_failed);
    text += "}}";
    comma = ",\n";
  }
  for (std::size_t row = 0; row < kRowNames.size(); ++row) {
    for (std::size_t lane = 0; lane < std::max<std::size_t>(1, lanes[row].ends.size()); ++lane) {
      const std::size_t id = row * kMaxLanes + lane;
      fmt::format_to(out,
                     "{}{{\"ph\": \"M\", \"pid\": 1, \"tid\": {}, \"name\": \"thread_name\", "
                     "\"args\": {{\"name\": \"{}\"}}}},\n"
                     "{{\"ph\": \"M\", \"pid\": 1, \"tid\": {}, \"name\": \"thread_sort_index\", "
                     "\"args\": {{\"sort_index\": {}}}}}",
                     comma, id, kRowNames[row], id, id);
      comma = ",\n";
    }
  }
  text += "\n]}\n";
  return text;
}

}  // namespace karez
