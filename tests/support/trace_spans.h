// A trace read back: its spans, and whether those of each row lie in each other.
//
// Thread: values.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace karez::test {

struct TracedSpan {
  std::string row;  // name of its thread
  int lane = 0;
  std::string name;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  nlohmann::json args;
  std::vector<std::string> within;  // names of the spans around it, outermost first
};

// In the order of the file. Throws if it is not what it should be.
inline std::vector<TracedSpan> read_trace(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text);
  std::map<int, std::string> rows;
  std::vector<TracedSpan> spans;
  for (const nlohmann::json& event : json.at("traceEvents")) {
    if (event.at("ph") == "M" && event.at("name") == "thread_name") {
      rows[event.at("tid")] = event.at("args").at("name");
    } else if (event.at("ph") == "X") {
      TracedSpan span;
      span.lane = event.at("tid");
      span.name = event.at("name");
      const auto nanoseconds = [&](const char* key) {
        return std::llround(event.at(key).get<double>() * 1000);
      };
      span.begin_ns = nanoseconds("ts");
      span.end_ns = span.begin_ns + nanoseconds("dur");
      span.args = event.at("args");
      spans.push_back(std::move(span));
    }
  }
  for (TracedSpan& span : spans) {
    span.row = rows.at(span.lane);
  }
  return spans;
}

// Empty if of any two spans of a lane one lies in the other or they do not overlap. Fills `within`.
inline std::string check_nesting(std::vector<TracedSpan>& spans) {
  std::map<int, std::vector<const TracedSpan*>> open;  // by lane, outermost first
  for (TracedSpan& span : spans) {
    if (span.end_ns < span.begin_ns) {
      return span.name + " ends before it begins";
    }
    std::vector<const TracedSpan*>& around = open[span.lane];
    while (!around.empty() && around.back()->end_ns <= span.begin_ns) {
      around.pop_back();
    }
    if (!around.empty() && around.back()->end_ns < span.end_ns) {
      return span.name + " ends after " + around.back()->name + ", which it began in";
    }
    for (const TracedSpan* outer : around) {
      span.within.push_back(outer->name);
    }
    around.push_back(&span);
  }
  return {};
}

}  // namespace karez::test
