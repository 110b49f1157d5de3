#include "cli/inspect_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/bytes.h"
#include "engine/kv_capacity.h"
#include "model/gguf_file.h"
#include "model/tokenizer_metadata.h"

namespace karez {
namespace {

constexpr std::int64_t kStepTokens = 512;
constexpr std::array kKvTypes = {KvType::kF32, KvType::kBf16, KvType::kQ8_0};
constexpr std::array<std::int64_t, 3> kContexts = {2048, 8192, 32768};

std::string_view to_string(RopeScaling scaling) {
  switch (scaling) {
    case RopeScaling::kNone:
      return "none";
    case RopeScaling::kLinear:
      return "linear";
    case RopeScaling::kYarn:
      return "yarn";
  }
  return "none";
}

std::string rope_line(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  std::string line =
      fmt::format("base {:.0f}, {} of {} coordinates, {} pairs", rope.freq_base, rope.dimensions,
                  config.head_dim, rope.neox ? "split" : "adjacent");
  if (rope.freq_scale != 1) {
    line += fmt::format(", {} scaling by {:.4g} from {} tokens", to_string(rope.scaling),
                        1 / rope.freq_scale, rope.original_context);
  }
  return line;
}

std::string windows_line(const ModelConfig& config) {
  std::string line;
  for (const LayerGroup& group : config.kv_cache_spec(KvType::kBf16).layer_groups()) {
    line += fmt::format("{}{} layers read {}", line.empty() ? "" : ", ", group.layers.size(),
                        group.window == 0 ? "all tokens" : fmt::format("{} tokens", group.window));
  }
  if (std::ranges::any_of(config.layer_windows, [](int window) { return window != 0; })) {
    line += fmt::format(" (rope base {:.0f} in windows)", config.rope.freq_base_window);
  }
  return line;
}

void add_model_lines(std::string& out, const InspectReport& report) {
  const ModelConfig& config = report.config;
  const auto line = [&](std::string_view name, const std::string& value) {
    fmt::format_to(std::back_inserter(out), "{:<13}{}\n", name, value);
  };
  line("file", fmt::format("{}, GGUF version {}, {}", report.path, report.gguf_version,
                           format_bytes(report.file_bytes)));
  line("architecture", config.architecture);
  if (!config.name.empty()) {
    line("name", config.name);
  }
  line("weights", fmt::format("{:.1f} M parameters, {}, mostly {}",
                              static_cast<double>(config.num_parameters) / 1e6,
                              format_bytes(config.weight_bytes), config.file_type));
  line("shape", fmt::format("{} layers, {} wide, feed-forward {}", config.num_layers,
                            config.hidden_size, config.intermediate_size));
  line("heads", fmt::format("{} for queries, {} for keys and values, {} coordinates each",
                            config.num_heads, config.num_kv_heads, config.head_dim));
  line("attention", windows_line(config));
  line("rope", rope_line(config));
  line("vocabulary", fmt::format("{} tokens ({})", config.vocab_size, report.tokenizer));
  line("context", fmt::format("{} tokens", config.context_length));
}

void add_kv_lines(std::string& out, const InspectReport& report) {
  fmt::format_to(std::back_inserter(out), "\n{:<9}{:>14}{:>13}{:>22}\n", "KV type", "bytes/token",
                 "slot bytes", "full context needs");
  for (const KvCostRow& row : report.kv) {
    fmt::format_to(std::back_inserter(out), "{:<9}{:>14}{:>13}{:>22}\n", to_string(row.kv_type),
                   row.bytes_per_token, row.slot_bytes, format_bytes(row.full_context_bytes));
  }
}

void add_fit_lines(std::string& out, const InspectReport& report) {
  fmt::format_to(std::back_inserter(out), "\n{:<12}{:<9}{:>17}", "KV cap", "KV type",
                 "longest sequence");
  for (const std::int64_t context : kContexts) {
    fmt::format_to(std::back_inserter(out), "{:>16}", fmt::format("seqs of {}", context));
  }
  out += '\n';
  for (const FitRow& row : report.fits) {
    fmt::format_to(std::back_inserter(out), "{:<12}{:<9}{:>17}", format_bytes(row.kv_fast_bytes),
                   to_string(row.kv_type), row.longest_sequence_tokens);
    for (const std::int64_t context : kContexts) {
      const auto fit = std::ranges::find(row.sequences, context, &FittingSequences::context_tokens);
      // Contexts that the model was not trained for.
      fmt::format_to(std::back_inserter(out), "{:>16}",
                     fit == row.sequences.end() ? "-" : std::to_string(fit->count));
    }
    out += '\n';
  }
}

nlohmann::json model_json(const InspectReport& report) {
  const ModelConfig& config = report.config;
  const RopeConfig& rope = config.rope;
  return {{"file", report.path},
          {"file_bytes", report.file_bytes},
          {"gguf_version", report.gguf_version},
          {"architecture", config.architecture},
          {"name", config.name},
          {"weight_type", config.file_type},
          {"weight_bytes", config.weight_bytes},
          {"parameters", config.num_parameters},
          {"layers", config.num_layers},
          {"hidden_size", config.hidden_size},
          {"intermediate_size", config.intermediate_size},
          {"heads", config.num_heads},
          {"kv_heads", config.num_kv_heads},
          {"head_dim", config.head_dim},
          {"layer_windows", config.layer_windows},
          {"vocab_size", config.vocab_size},
          {"tokenizer", report.tokenizer},
          {"context_length", config.context_length},
          {"rope",
           {{"freq_base", rope.freq_base},
            {"freq_base_window", rope.freq_base_window},
            {"freq_scale", rope.freq_scale},
            {"scaling", to_string(rope.scaling)},
            {"dimensions", rope.dimensions},
            {"original_context", rope.original_context}}}};
}

}  // namespace

Expected<InspectReport> inspect_model(const GgufFile& file,
                                      const std::vector<std::int64_t>& caps_bytes) {
  auto config = read_model_config(file);
  if (!config) {
    return fail(std::move(config.error()));
  }
  if (auto checked = check_tokenizer_metadata(file); !checked) {
    return fail(std::move(checked.error()));
  }
  InspectReport report;
  report.path = file.path();
  report.file_bytes = static_cast<std::int64_t>(file.bytes().size());
  report.gguf_version = file.version();
  report.tokenizer = file.get_string("tokenizer.ggml.model").value_or("");
  report.config = std::move(*config);

  const std::int64_t context = report.config.context_length;
  for (const KvType type : kKvTypes) {
    const KVCacheSpec spec = report.config.kv_cache_spec(type);
    report.kv.push_back({type, static_cast<std::int64_t>(spec.bytes_per_token()),
                         static_cast<std::int64_t>(spec.slot_bytes()),
                         bytes_for_sequence(spec, context, kStepTokens)});
  }
  for (const std::int64_t cap : caps_bytes) {
    for (const KvType type : kKvTypes) {
      const KVCacheSpec spec = report.config.kv_cache_spec(type);
      FitRow row{cap, type, longest_sequence_tokens(spec, cap, context, kStepTokens), {}};
      for (const std::int64_t tokens : kContexts) {
        if (tokens <= context) {
          row.sequences.push_back({tokens, sequences_in_cap(spec, cap, tokens, kStepTokens)});
        }
      }
      report.fits.push_back(std::move(row));
    }
  }
  return report;
}

std::string to_text(const InspectReport& report) {
  std::string out;
  add_model_lines(out, report);
  add_kv_lines(out, report);
  add_fit_lines(out, report);
  return out;
}

std::string to_json(const InspectReport& report) {
  nlohmann::json kv = nlohmann::json::array();
  for (const KvCostRow& row : report.kv) {
    kv.push_back({{"kv_type", to_string(row.kv_type)},
                  {"bytes_per_token", row.bytes_per_token},
                  {"slot_bytes", row.slot_bytes},
                  {"full_context_bytes", row.full_context_bytes}});
  }
  nlohmann::json fits = nlohmann::json::array();
  for (const FitRow& row : report.fits) {
    nlohmann::json sequences = nlohmann::json::array();
    for (const FittingSequences& fit : row.sequences) {
      sequences.push_back({{"context_tokens", fit.context_tokens}, {"count", fit.count}});
    }
    fits.push_back({{"kv_fast_bytes", row.kv_fast_bytes},
                    {"kv_type", to_string(row.kv_type)},
                    {"longest_sequence_tokens", row.longest_sequence_tokens},
                    {"sequences", sequences}});
  }
  // A model's name need not be UTF-8.
  return nlohmann::json{{"model", model_json(report)}, {"kv", kv}, {"fits", fits}}.dump(
             2, ' ', false, nlohmann::json::error_handler_t::replace) +
         "\n";
}

}  // namespace karez
