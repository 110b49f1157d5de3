// What a run did when, as spans for a person to look at: Chrome's trace event format, which
// chrome://tracing and ui.perfetto.dev open.
//
// Computing is one row, whose spans lie in each other (step, attention of a layer, select, wait).
// Transfers are rows of their own; those of one submission are shown as one span, in as many lanes
// as overlap. Knows no models and no tiers.
//
// Memory: the last max_spans spans, 80 bytes each; older ones are dropped and counted.
// Thread: one at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace karez {

enum class TraceRow : std::uint8_t { kCompute, kDemand, kPrefetch, kWriteBack };
inline constexpr int kNumTraceRows = 4;

struct TraceSpan {
  using TimePoint = std::chrono::steady_clock::time_point;

  const char* name = "";  // lives as long as the process; letters, digits, spaces, hyphens
  TraceRow row = TraceRow::kCompute;
  bool has_failed = false;
  int layer = -1;           // -1: of none
  std::uint64_t group = 0;  // of transfers: what was submitted together; see new_source()
  std::int64_t items = 0;   // rows of a step, blocks of a transfer; 0: not said
  std::int64_t bytes = 0;   // of transfers
  TimePoint begin;
  TimePoint end;
};

class TraceWriter {
 public:
  static constexpr std::size_t kDefaultSpans = std::size_t{1} << 18U;

  // max_spans >= 1.
  explicit TraceWriter(std::size_t max_spans = kDefaultSpans) : max_spans_(max_spans) {}

  void add(const TraceSpan& span);
  // 2^32 groups that nobody else has: from this number on.
  std::uint64_t new_source() { return ++num_sources_ << 32U; }
  std::int64_t num_dropped() const { return num_added_ - static_cast<std::int64_t>(spans_.size()); }

  // {"traceEvents": [...], ...}; microseconds since the first span begins.
  std::string to_json() const;

 private:
  std::size_t max_spans_;
  std::int64_t num_added_ = 0;
  std::uint64_t num_sources_ = 0;
  std::vector<TraceSpan> spans_;  // a ring once it is full
};

}  // namespace karez
