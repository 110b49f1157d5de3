// What eval_report.h shows of modes that compress.
//
// Thread: pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/eval_report.h"
#include "engine/line_plot.h"

namespace karez {

// "50 % bidirectional token2chunk off"
std::string to_string(const CompressionOptions& options);

nlohmann::json to_json(const CompressionOptions& options);
nlohmann::json to_json(const CompressedRun& run);

// A row for each mode and text, with a heading and a key. Requires: there are modes, all of which
// compress.
std::string compression_table(const EvalReport& report);
// Total loss against the KV bytes that are left, a line for each way to choose what is kept.
LinePlot compression_plot(const EvalReport& report);

}  // namespace karez
