#include "engine/eval_compression_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

namespace karez {
namespace {

// "bidirectional token2chunk off", behind the mode where modes differ in more than that.
std::string way_of(const EvalMode& mode, bool names_mode) {
  const CompressionOptions& options = *mode.compression;
  std::string name = fmt::format("{} {} {}", to_string(options.score), options.chunk_name(),
                                 to_string(options.archive));
  if (names_mode) {
    EvalMode plain = mode;
    plain.compression.reset();
    name = fmt::format("{}, {}", to_string(plain), name);
  }
  return name;
}

bool all_share_a_runner(const EvalReport& report) {
  return std::all_of(report.modes.begin(), report.modes.end(), [&](const EvalModeResult& result) {
    return share_a_runner(result.mode, report.modes.front().mode);
  });
}

bool compressed_nothing(const EvalModeResult& result) {
  return std::all_of(result.documents.begin(), result.documents.end(),
                     [](const EvalDocumentResult& document) {
                       return !document.compressed || document.compressed->windows == 0;
                     });
}

struct Row {
  const EvalMode& mode;
  std::string text;
  EvalFigures figures;
  std::vector<NeedleResult> needles;
  CompressedRun compressed;
};

constexpr std::string_view kFormat =
    "{:<{}} {:>4} {:<13} {:<11} {:<7} {:<20} {:>6} | {:>9} {:>9} | {:>18} | {:>8} {:>7} {:>8} | "
    "{:>9} {:>14} | {:>7} {:>8} {:>7}\n";

void add_row(std::string& table, std::size_t width, const Row& row) {
  const CompressionOptions& options = *row.mode.compression;
  const EvalFigures& figures = row.figures;
  const NeedleFigures found = summarise_needles(row.needles);
  const CompressedRun& run = row.compressed;
  EvalMode plain = row.mode;
  plain.compression.reset();
  fmt::format_to(
      std::back_inserter(table), fmt::runtime(kFormat), to_string(plain), width,
      fmt::format("{:.3g}", options.keep * 100), to_string(options.score), options.chunk_name(),
      to_string(options.archive), row.text, figures.tokens,
      fmt::format("{:.3f}", figures.reference_perplexity),
      fmt::format("{:.3f}", figures.perplexity),
      fmt::format("{:+.4f} +- {:.4f}", figures.loss, figures.loss_standard_error),
      fmt::format("{:.4f}", figures.mean_kl), fmt::format("{:.3f}", figures.worst_kl),
      fmt::format("{:.2f} %", figures.agreement * 100),
      row.needles.empty() ? "-" : fmt::format("{:+.3f}", found.answers.loss),
      row.needles.empty()
          ? "-"
          : fmt::format("{} ({}) / {}", found.recalled, found.reference_recalled, found.asked),
      fmt::format("{:.1f} %", run.kv_share() * 100), run.windows,
      run.seconds > 0 ? fmt::format("{:.1f} %", run.compress_seconds / run.seconds * 100) : "-");
}

}  // namespace

std::string to_string(const CompressionOptions& options) {
  return fmt::format("{:.3g} % {} {} {}", options.keep * 100, to_string(options.score),
                     options.chunk_name(), to_string(options.archive));
}

nlohmann::json to_json(const CompressionOptions& options) {
  return {{"keep", options.keep},
          {"kept_tokens", options.kept_tokens()},
          {"score", to_string(options.score)},
          {"chunk", options.chunk_name()},
          {"archive", to_string(options.archive)},
          {"window_tokens", options.window_tokens},
          {"recent_tokens", options.recent_tokens}};
}

nlohmann::json to_json(const CompressedRun& run) {
  return {{"windows", run.windows},
          {"kv_bytes", run.kv_bytes},
          {"dense_kv_bytes", run.dense_kv_bytes},
          {"kv_share", run.kv_share()},
          {"compress_seconds", run.compress_seconds},
          {"seconds", run.seconds}};
}

std::string compression_table(const EvalReport& report) {
  const CompressionOptions& first = *report.modes.front().mode.compression;
  std::string table = fmt::format(
      "{}: windows of {} generated tokens are compressed when {} more lie behind them\n",
      report.model, first.window_tokens, first.recent_tokens);
  if (std::any_of(report.modes.begin(), report.modes.end(),
                  [](const EvalModeResult& result) { return result.mode.is_sparse; })) {
    fmt::format_to(std::back_inserter(table),
                   "recent window {}, sink {}, dense layers {}, one selection for each {}, key "
                   "centre: {}\n",
                   report.recent_window, report.sink_tokens, report.dense_layers, report.select_per,
                   report.key_centre.empty() ? "zero" : report.key_centre);
  }
  table += '\n';
  std::size_t width = std::string_view("mode").size();
  for (const EvalModeResult& result : report.modes) {
    EvalMode plain = result.mode;
    plain.compression.reset();
    width = std::max(width, to_string(plain).size());
  }
  fmt::format_to(std::back_inserter(table), fmt::runtime(kFormat), "mode", width, "keep", "score",
                 "chunk", "archive", "text", "tokens", "ppl dense", "ppl", "loss, nats/token",
                 "KL mean", "worst", "top-1", "answers", "found", "KV", "windows", "time");
  for (const EvalModeResult& result : report.modes) {
    int num_texts = 0;
    for (const EvalDocumentResult& document : result.documents) {
      if (document.kind != DocumentKind::kPassKey) {
        add_row(table, width,
                {result.mode, document.name, summarise(document.rows), document.needles,
                 document.compressed.value_or(CompressedRun())});
        ++num_texts;
      }
    }
    if (num_texts > 1) {
      add_row(table, width,
              {result.mode, "all", result.total(), result.needles(DocumentKind::kNeedles),
               result.compressed()});
    }
  }
  if (std::all_of(report.modes.begin(), report.modes.end(), compressed_nothing)) {
    table +=
        "\nNo window was compressed: the texts are too short. The figures are those of dense "
        "attention.\n";
  }
  table +=
      "\nkeep: % of a window's pairs. loss: over dense attention, with the standard error over "
      "tokens. answers: the\nloss on tokens of planted numbers. found: needles whose number is "
      "predicted whole; dense in brackets; of all.\nKV: bytes at the end, of those of dense "
      "attention. windows: that were compressed. time: that this took, of the\nrun's, which reads "
      "many rows in a step.\n";
  return table;
}

LinePlot compression_plot(const EvalReport& report) {
  LinePlot plot{.title = fmt::format("What compression costs, {}", report.model),
                .x_label = "KV bytes at the end, % of dense attention",
                .y_label = "loss over dense attention, nats a token",
                .log_x = false,
                .prefer_log_y = true,
                .lines = {}};
  const bool names_mode = !all_share_a_runner(report);
  for (const EvalModeResult& result : report.modes) {
    const std::string label = way_of(result.mode, names_mode);
    auto line = std::find_if(plot.lines.begin(), plot.lines.end(),
                             [&](const PlotLine& known) { return known.label == label; });
    if (line == plot.lines.end()) {
      line = plot.lines.insert(line, {label, {}});
    }
    const EvalFigures total = result.total();
    // The axis shows these values as they are.
    const double share = std::round(result.compressed().kv_share() * 1000) / 10;
    line->points.push_back({share, total.loss, total.loss_standard_error});
  }
  return plot;
}

}  // namespace karez
