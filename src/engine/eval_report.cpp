#include "engine/eval_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "engine/eval_compression_report.h"
#include "engine/line_plot.h"

namespace karez {
namespace {

constexpr int kDepthBins = 5;

int depth_bin(double depth) {
  return std::clamp(static_cast<int>(depth * kDepthBins), 0, kDepthBins - 1);
}

std::string_view to_string(DocumentKind kind) {
  switch (kind) {
    case DocumentKind::kText:
      return "text";
    case DocumentKind::kNeedles:
      return "needles";
    case DocumentKind::kPassKey:
      break;
  }
  return "pass_key";
}

// JSON has no number that is not finite.
nlohmann::json number(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}

nlohmann::json figures_to_json(const EvalFigures& figures) {
  return {{"tokens", figures.tokens},
          {"reference_nll", number(figures.reference_nll)},
          {"nll", number(figures.nll)},
          {"reference_perplexity", number(figures.reference_perplexity)},
          {"perplexity", number(figures.perplexity)},
          {"loss", number(figures.loss)},
          {"loss_standard_error", number(figures.loss_standard_error)},
          {"mean_kl", number(figures.mean_kl)},
          {"worst_kl", number(figures.worst_kl)},
          {"top1_agreement", number(figures.agreement)}};
}

nlohmann::json needles_to_json(const std::vector<NeedleResult>& needles) {
  const NeedleFigures figures = summarise_needles(needles);
  nlohmann::json json = {{"asked", figures.asked},
                         {"recalled", figures.recalled},
                         {"reference_recalled", figures.reference_recalled},
                         {"answers", figures_to_json(figures.answers)}};
  json["by_needle"] = nlohmann::json::array();
  for (const NeedleResult& needle : needles) {
    json["by_needle"].push_back({{"depth", needle.depth},
                                 {"recalled", needle.is_recalled()},
                                 {"reference_recalled", needle.reference_recalls()},
                                 {"loss", number(summarise(needle.tokens).loss)}});
  }
  return json;
}

nlohmann::json mode_to_json(const EvalModeResult& result, int num_layers) {
  const EvalMode& mode = result.mode;
  nlohmann::json json = {{"kv_mode", mode.is_sparse ? "sparse" : "dense"},
                         {"kv_type", karez::to_string(mode.kv_type)},
                         {"reference_kv_type", karez::to_string(result.reference_type)}};
  if (mode.is_sparse) {
    json["token_budget"] = mode.token_budget;
    json["block_index"] = karez::to_string(mode.block_index);
    json["index_share_of_kv"] = result.index_share;
  }
  if (mode.compression) {
    json["compression"] = to_json(*mode.compression);
  }
  json["documents"] = nlohmann::json::array();
  for (const EvalDocumentResult& document : result.documents) {
    nlohmann::json entry = {{"name", document.name},
                            {"kind", to_string(document.kind)},
                            {"length_tokens", document.length_tokens},
                            {"figures", figures_to_json(summarise(document.rows))}};
    if (document.compressed) {
      entry["prompt_tokens"] = document.prompt_tokens;
      entry["compressed"] = to_json(*document.compressed);
    }
    if (!document.needles.empty()) {
      entry["needles"] = needles_to_json(document.needles);
    }
    json["documents"].push_back(std::move(entry));
  }
  // Pass keys alone are no text: that is no total of zero.
  if (const EvalFigures total = result.total(); total.tokens > 0) {
    json["total"] = figures_to_json(total);
    if (mode.compression) {
      json["compressed"] = to_json(result.compressed());
    }
  }
  for (const auto& [key, kind] : {std::pair("needles", DocumentKind::kNeedles),
                                  std::pair("pass_keys", DocumentKind::kPassKey)}) {
    if (const auto needles = result.needles(kind); !needles.empty()) {
      json[key] = needles_to_json(needles);
    }
  }
  if (!result.recall.empty()) {
    json["attention_mass_recalled"] = nlohmann::json::array();
    for (const RecallSummary& layer : summarise_recall(result.recall, num_layers)) {
      json["attention_mass_recalled"].push_back({{"samples", layer.count},
                                                 {"mean", layer.mean},
                                                 {"p1", layer.p1},
                                                 {"worst", layer.worst}});
    }
  }
  return json;
}

constexpr std::string_view kRowFormat =
    "{:<22} {:<20} {:>6} | {:>9} {:>9} | {:>18} | {:>8} {:>7} {:>8} | {:>9} {:>14}\n";

class TableWriter {
 public:
  explicit TableWriter(const EvalReport& report) : report_(report) {}

  std::string write() {
    for (const EvalModeResult& result : report_.modes) {
      mode_width_ = std::max(mode_width_, to_string(result.mode).size());
    }
    if (report_.modes.front().mode.compression) {
      text_ += compression_table(report_);
    } else {
      add("{}: recent window {}, sink {}, dense layers {}, one selection for each {}, key centre: "
          "{}{}\n\n",
          report_.model, report_.recent_window, report_.sink_tokens, report_.dense_layers,
          report_.select_per, report_.key_centre.empty() ? "zero" : report_.key_centre,
          report_.prompt_kv == "r4" ? ", the prompt's KV through r4" : "");
      quality();
    }
    by_depth();
    pass_keys();
    recall();
    return std::move(text_);
  }

 private:
  template <typename... Arguments>
  void add(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Arguments>(arguments)...);
  }

  void row(const std::string& mode, const std::string& name, const EvalFigures& figures,
           const std::vector<NeedleResult>& needles) {
    const NeedleFigures found = summarise_needles(needles);
    add(fmt::runtime(kRowFormat), mode, name, figures.tokens,
        fmt::format("{:.3f}", figures.reference_perplexity),
        fmt::format("{:.3f}", figures.perplexity),
        fmt::format("{:+.4f} +- {:.4f}", figures.loss, figures.loss_standard_error),
        fmt::format("{:.4f}", figures.mean_kl), fmt::format("{:.3f}", figures.worst_kl),
        fmt::format("{:.2f} %", figures.agreement * 100),
        needles.empty() ? "-" : fmt::format("{:+.3f}", found.answers.loss),
        needles.empty()
            ? "-"
            : fmt::format("{} ({}) / {}", found.recalled, found.reference_recalled, found.asked));
  }

  void quality() {
    add(fmt::runtime(kRowFormat), "mode", "text", "tokens", "ppl dense", "ppl", "loss, nats/token",
        "KL mean", "worst", "top-1", "answers", "found");
    for (const EvalModeResult& result : report_.modes) {
      std::string name = to_string(result.mode);
      int num_texts = 0;
      for (const EvalDocumentResult& document : result.documents) {
        if (document.kind != DocumentKind::kPassKey) {
          row(name, document.name, summarise(document.rows), document.needles);
          name.clear();
          ++num_texts;
        }
      }
      if (num_texts > 1) {
        row(name, "all", result.total(), result.needles(DocumentKind::kNeedles));
      }
    }
    add("\nloss: over dense attention, with the standard error over tokens. answers: the loss on "
        "tokens of\nplanted numbers. found: needles whose number is predicted whole; dense in "
        "brackets; of all.\n");
    for (const EvalModeResult& result : report_.modes) {
      if (result.mode.is_sparse) {
        add("block index of {}: {:.1f} % of the KV bytes\n", to_string(result.mode),
            result.index_share * 100);
      }
    }
  }

  void by_depth() {
    if (report_.modes.front().needles(DocumentKind::kNeedles).empty()) {
      return;
    }
    add("\nNeedles found by depth (dense)\n{:<{}}", "mode", mode_width_);
    for (int bin = 0; bin < kDepthBins; ++bin) {
      add(" {:>13}", fmt::format("{}-{} %", bin * 100 / kDepthBins, (bin + 1) * 100 / kDepthBins));
    }
    add("\n");
    for (const EvalModeResult& result : report_.modes) {
      std::vector<std::vector<NeedleResult>> bins(kDepthBins);
      for (NeedleResult& needle : result.needles(DocumentKind::kNeedles)) {
        bins[static_cast<std::size_t>(depth_bin(needle.depth))].push_back(std::move(needle));
      }
      add("{:<{}}", to_string(result.mode), mode_width_);
      for (const std::vector<NeedleResult>& bin : bins) {
        const NeedleFigures found = summarise_needles(bin);
        add(" {:>13}",
            fmt::format("{} ({}) / {}", found.recalled, found.reference_recalled, found.asked));
      }
      add("\n");
    }
  }

  void pass_keys() {
    bool has_title = false;
    for (const EvalModeResult& result : report_.modes) {
      std::map<int, std::vector<const EvalDocumentResult*>> by_length;
      for (const EvalDocumentResult& document : result.documents) {
        if (document.kind == DocumentKind::kPassKey) {
          by_length[document.length_tokens].push_back(&document);
        }
      }
      for (const auto& [length, documents] : by_length) {
        if (!std::exchange(has_title, true)) {
          add("\nPass key by context length and depth: found (dense), loss of its tokens\n");
        }
        add("{:<{}} {:>7}", to_string(result.mode), mode_width_, length);
        for (const EvalDocumentResult* document : documents) {
          const NeedleResult& key = document->needles.front();
          add(" | {:.0f} %: {} ({}) {:+.3f}", key.depth * 100, key.is_recalled() ? "yes" : "no",
              key.reference_recalls() ? "yes" : "no", summarise(key.tokens).loss);
        }
        add("\n");
      }
    }
  }

  void recall() {
    std::vector<std::pair<std::string, std::vector<RecallSummary>>> columns;
    for (const EvalModeResult& result : report_.modes) {
      if (!result.recall.empty()) {
        columns.emplace_back(to_string(result.mode),
                             summarise_recall(result.recall, report_.num_layers));
      }
    }
    if (columns.empty()) {
      return;
    }
    add("\nAttention mass in the selected blocks, every row at a multiple of {}: mean, p1, worst\n"
        "layer",
        report_.recall_stride);
    for (const auto& [name, layers] : columns) {
      add(" | {:<20}", name);
    }
    add("\n");
    for (int layer = 0; layer < report_.num_layers; ++layer) {
      add("{:>5}", layer);
      for (const auto& [name, layers] : columns) {
        const RecallSummary& summary = layers[static_cast<std::size_t>(layer)];
        add(" | {:<20}", summary.count == 0 ? std::string("-")
                                            : fmt::format("{:.4f} {:.3f} {:.3f}", summary.mean,
                                                          summary.p1, summary.worst));
      }
      add("\n");
    }
  }

  const EvalReport& report_;
  std::size_t mode_width_ = 22;
  std::string text_;
};

LinePlot budget_plot(const EvalReport& report) {
  LinePlot plot{.title = fmt::format("What a token budget costs, {}", report.model),
                .x_label = "token budget",
                .y_label = "loss over dense attention, nats a token",
                .log_x = true,
                .prefer_log_y = true,
                .lines = {}};
  for (const EvalModeResult& result : report.modes) {
    if (!result.mode.is_sparse) {
      continue;
    }
    const std::string label = fmt::format("{}, {}", karez::to_string(result.mode.block_index),
                                          karez::to_string(result.mode.kv_type));
    auto line = std::find_if(plot.lines.begin(), plot.lines.end(),
                             [&](const PlotLine& known) { return known.label == label; });
    if (line == plot.lines.end()) {
      line = plot.lines.insert(line, {label, {}});
    }
    const EvalFigures total = result.total();
    line->points.push_back(
        {static_cast<double>(result.mode.token_budget), total.loss, total.loss_standard_error});
  }
  return plot;
}

}  // namespace

std::string to_string(const EvalMode& mode) {
  const std::string name = mode.is_sparse
                               ? fmt::format("sparse {} {} {}", karez::to_string(mode.block_index),
                                             mode.token_budget, karez::to_string(mode.kv_type))
                               : fmt::format("dense {}", karez::to_string(mode.kv_type));
  return mode.compression ? fmt::format("{} {}", name, to_string(*mode.compression)) : name;
}

bool share_a_runner(const EvalMode& a, const EvalMode& b) {
  return a.kv_type == b.kv_type && a.is_sparse == b.is_sparse &&
         (!a.is_sparse || (a.token_budget == b.token_budget && a.block_index == b.block_index));
}

double CompressedRun::kv_share() const {
  return dense_kv_bytes == 0 ? 0
                             : static_cast<double>(kv_bytes) / static_cast<double>(dense_kv_bytes);
}

EvalDocumentResult document_result(const EvalDocument& document, std::vector<RowComparison> rows) {
  KAREZ_CHECK(rows.size() == static_cast<std::size_t>(document.num_decoded),
              "a row for each decoded token");
  EvalDocumentResult result;
  result.name = document.name;
  result.kind = document.kind;
  result.length_tokens = static_cast<int>(document.tokens.size());
  for (const Needle& needle : document.needles) {
    NeedleResult& found = result.needles.emplace_back();
    found.depth = needle.depth;
    // The row before a token predicts it.
    const int first = result.length_tokens - document.num_decoded;
    for (const int position : needle.answer_positions) {
      found.tokens.push_back(rows[static_cast<std::size_t>(position - first)]);
    }
  }
  result.rows = std::move(rows);
  return result;
}

bool NeedleResult::is_recalled() const {
  return std::all_of(tokens.begin(), tokens.end(), [](const auto& row) { return row.hits; });
}

bool NeedleResult::reference_recalls() const {
  return std::all_of(tokens.begin(), tokens.end(),
                     [](const auto& row) { return row.reference_hits; });
}

NeedleFigures summarise_needles(const std::vector<NeedleResult>& needles) {
  NeedleFigures figures;
  std::vector<RowComparison> answers;
  for (const NeedleResult& needle : needles) {
    answers.insert(answers.end(), needle.tokens.begin(), needle.tokens.end());
    ++figures.asked;
    figures.recalled += needle.is_recalled() ? 1 : 0;
    figures.reference_recalled += needle.reference_recalls() ? 1 : 0;
  }
  figures.answers = summarise(answers);
  return figures;
}

EvalFigures EvalModeResult::total() const {
  std::vector<RowComparison> rows;
  for (const EvalDocumentResult& document : documents) {
    if (document.kind != DocumentKind::kPassKey) {
      rows.insert(rows.end(), document.rows.begin(), document.rows.end());
    }
  }
  return summarise(rows);
}

CompressedRun EvalModeResult::compressed() const {
  CompressedRun sum;
  for (const EvalDocumentResult& document : documents) {
    if (document.kind == DocumentKind::kPassKey || !document.compressed) {
      continue;
    }
    sum.windows += document.compressed->windows;
    sum.kv_bytes += document.compressed->kv_bytes;
    sum.dense_kv_bytes += document.compressed->dense_kv_bytes;
    sum.compress_seconds += document.compressed->compress_seconds;
    sum.seconds += document.compressed->seconds;
  }
  return sum;
}

std::vector<NeedleResult> EvalModeResult::needles(DocumentKind kind) const {
  std::vector<NeedleResult> all;
  for (const EvalDocumentResult& document : documents) {
    if (document.kind == kind) {
      all.insert(all.end(), document.needles.begin(), document.needles.end());
    }
  }
  return all;
}

std::string to_table(const EvalReport& report) {
  return report.modes.empty() ? std::string() : TableWriter(report).write();
}

nlohmann::json to_json(const EvalReport& report) {
  nlohmann::json json = {{"model", report.model},
                         {"recent_window", report.recent_window},
                         {"sink_tokens", report.sink_tokens},
                         {"dense_layers", report.dense_layers},
                         {"select_per", report.select_per},
                         {"key_centre", report.key_centre},
                         {"prompt_kv", report.prompt_kv},
                         {"recall_stride", report.recall_stride},
                         {"seed", report.seed}};
  json["modes"] = nlohmann::json::array();
  for (const EvalModeResult& result : report.modes) {
    json["modes"].push_back(mode_to_json(result, report.num_layers));
  }
  return json;
}

std::string to_plot(const EvalReport& report) {
  const bool is_compressed = !report.modes.empty() && report.modes.front().mode.compression;
  LinePlot plot = is_compressed ? compression_plot(report) : budget_plot(report);
  for (PlotLine& line : plot.lines) {
    std::sort(line.points.begin(), line.points.end(),
              [](const PlotPoint& a, const PlotPoint& b) { return a.x < b.x; });
  }
  return to_svg(plot);
}

}  // namespace karez
