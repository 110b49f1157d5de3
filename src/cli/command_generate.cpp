#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <utility>

#include "base/bytes.h"
#include "cli/commands.h"
#include "cli/flag_checks.h"
#include "cli/generate_options.h"
#include "cli/generate_report.h"
#include "cli/interrupt.h"
#include "cli/report.h"
#include "cli/stderr_capture.h"
#include "cli/terminal.h"
#include "cli/text_file.h"
#include "engine/attached_key_index.h"
#include "engine/generator.h"
#include "engine/home_tier.h"
#include "kv/kv_cache_manager.h"
#include "model/ggml_model_runner.h"
#include "model/llama_sampler.h"
#include "model/model_config.h"
#include "model/tokenizer.h"
#include "sampling/utf8.h"

namespace karez {
namespace {

using SteadyClock = std::chrono::steady_clock;

// The text of -f, a blank line, the text of -p.
Expected<std::string> read_prompt(const GenerateFlags& flags, std::size_t max_bytes) {
  for (const auto& [flag, text] :
       {std::pair("-p", &flags.prompt), std::pair("-sys", &flags.system_prompt)}) {
    if (const auto offset = first_invalid_utf8(*text)) {
      return fail(StatusCode::kInvalidArgument,
                  fmt::format("{}: the text is not UTF-8 at byte {}", flag, *offset));
    }
  }
  std::string prompt;
  if (!flags.prompt_file.empty()) {
    auto text = read_text_file(flags.prompt_file, max_bytes);
    if (!text) {
      return text;
    }
    prompt = std::move(*text);
    if (prompt.empty()) {
      return fail(StatusCode::kInvalidArgument,
                  fmt::format("{}: the prompt file is empty", flags.prompt_file));
    }
    if (prompt.ends_with('\n')) {
      prompt.pop_back();  // the end of the last line, not part of the prompt
    }
    if (flags.has_prompt) {
      prompt += "\n\n";
    }
  }
  prompt += flags.prompt;
  if (prompt.empty()) {
    return fail(StatusCode::kInvalidArgument, "the prompt is empty");
  }
  return prompt;
}

Expected<std::vector<TokenId>> tokenize_prompt(const Tokenizer& tokenizer,
                                               const GenerateFlags& flags,
                                               const std::string& prompt) {
  bool raw = flags.raw;
  if (!raw && !tokenizer.has_chat_template()) {
    report_note("the model has no chat template, so the prompt is used as it is (as with --raw)");
    if (!flags.system_prompt.empty()) {
      return fail(StatusCode::kInvalidArgument,
                  "-sys needs a chat template and this model has none");
    }
    raw = true;
  }
  if (raw) {
    return tokenizer.tokenize(prompt, /*add_special=*/true, /*parse_special=*/true);
  }
  std::vector<ChatMessage> messages;
  if (!flags.system_prompt.empty()) {
    messages.push_back({"system", flags.system_prompt});
  }
  messages.push_back({"user", prompt});
  auto tokens = tokenizer.tokenize_chat(messages, /*add_generation_prompt=*/true);
  if (!tokens && tokens.error().code() == StatusCode::kUnimplemented) {
    const std::string flag = flags.chat_template.empty()
                                 ? std::string()
                                 : fmt::format("--chat-template is {}: ", flags.chat_template);
    return fail(tokens.error().code(),
                flag + tokens.error().message() + "; --raw works without one");
  }
  return tokens;
}

Expected<std::unique_ptr<Sampler>> make_sampler(const Tokenizer& tokenizer,
                                                const SamplingParams& params, int context_tokens) {
  StderrCapture capture;
  auto sampler = make_llama_sampler(tokenizer, params, context_tokens);
  const std::string reason = capture.finish();
  if (!sampler && !reason.empty()) {
    return fail(sampler.error().code(), sampler.error().message() + " (" + reason + ")");
  }
  return sampler;
}

Expected<std::unique_ptr<KVCacheManager>> make_kv(const KVCacheSpec& spec,
                                                  const GenerateOptions& options,
                                                  int context_tokens) {
  auto home = make_home_tier(spec, options.home);
  if (!home) {
    return fail(std::move(home.error()));
  }
  if (options.kv_fast_bytes) {
    auto capped = KVCacheManager::create(spec, *options.kv_fast_bytes, std::move(*home));
    if (!capped) {
      return fail(capped.error().code(), "--kv-fast-bytes: " + capped.error().message());
    }
    return capped;
  }
  auto kv = KVCacheManager::create(
      spec, kv_bytes_for_sequence(spec, context_tokens, options.chunk_tokens), std::move(*home));
  if (!kv && kv.error().code() == StatusCode::kResourceExhausted) {
    return fail(kv.error().code(), fmt::format("{}; a smaller -c or --kv-fast-bytes needs less",
                                               kv.error().message()));
  }
  return kv;
}

void print_details(const ModelConfig& config, const GenerateReport& report) {
  const StepTimes& times = report.decode_times;
  write_stderr(fmt::format("model      {} ({}, {})\nseed       {}\n", report.model,
                           config.architecture, config.file_type, report.seed));
  if (times.steps > 0) {
    const double ms = 1000.0 / static_cast<double>(times.steps);
    write_stderr(fmt::format("step       {:.2f} ms: dense {:.2f}, attention {:.2f}, other {:.2f}\n",
                             times.total * ms, times.dense * ms, times.attention * ms,
                             times.other * ms));
  }
}

Expected<int> generate(const GenerateFlags& typed) {
  const auto load_start = SteadyClock::now();
  const InterruptGuard interrupt;
  auto checked = check_generate_flags(typed);
  if (!checked) {
    return fail(std::move(checked.error()));
  }
  const GenerateOptions& options = *checked;
  const GenerateFlags& flags = options.flags;

  // Everything that can be wrong with the request is found before the weights are loaded.
  auto config = read_model_config(flags.model_path);
  if (!config) {
    return fail(std::move(config.error()));
  }
  if (auto usable = check_sparse_for_model(options.sparse, config->num_layers); !usable) {
    return fail(std::move(usable.error()));
  }
  const auto context = context_tokens_of(flags.context_tokens, config->context_length);
  if (!context) {
    return fail(context.error());
  }
  auto tokenizer = Tokenizer::load(flags.model_path, flags.chat_template);
  if (!tokenizer) {
    return fail(std::move(tokenizer.error()));
  }
  // A text of more bytes has more tokens than the context, however it is cut.
  const std::size_t max_bytes =
      static_cast<std::size_t>(*context) * (*tokenizer)->max_piece_bytes();
  const auto prompt = read_prompt(flags, max_bytes);
  if (!prompt) {
    return fail(prompt.error());
  }
  const auto tokens = tokenize_prompt(**tokenizer, flags, *prompt);
  if (!tokens) {
    return fail(tokens.error());
  }
  auto sampler = make_sampler(**tokenizer, flags.sampling, *context);
  if (!sampler) {
    return fail(std::move(sampler.error()));
  }
  auto kv = make_kv(config->kv_cache_spec(options.kv_type), options, *context);
  if (!kv) {
    return fail(std::move(kv.error()));
  }
  GeneratorOptions generator_options{*context,
                                     options.max_tokens,
                                     options.chunk_tokens,
                                     flags.sampling.stop,
                                     !options.sparse.is_on(),
                                     flags.ignore_eos};
  generator_options.decode_read_tokens = decode_read_tokens(options.sparse, (*kv)->spec());
  if (flags.compress.compress) {
    if (!(*kv)->compressible_group()) {
      return fail(StatusCode::kInvalidArgument, kNothingToCompress);
    }
    generator_options.compression =
        schedule_in((*kv)->spec(), options.compression, static_cast<int>(tokens->size()));
  }
  if (auto fits = check_prompt(*tokens, generator_options, config->vocab_size, **kv); !fits) {
    return fail(std::move(fits.error()));
  }
  if (!flags.json_file.empty()) {
    if (auto writable = check_writable(flags.json_file); !writable) {
      return fail(std::move(writable.error()));
    }
  }

  GenerateReport report;
  report.model = std::filesystem::path(flags.model_path).filename().string();
  report.kv_type = options.kv_type;
  report.token_budget = options.sparse.token_budget;
  report.spec_type = options.spec.type;
  report.on_miss = options.on_miss;
  if ((*kv)->residency() != nullptr) {
    report.home = (*kv)->residency()->describe();
  }
  report.context_tokens = *context;
  report.threads = options.threads;
  report.seed = flags.sampling.seed;

  Progress loading("loading", "");
  ModelRunnerOptions runner_options;
  runner_options.num_threads = options.threads;
  runner_options.kv_type = options.kv_type;
  runner_options.repack_weights = !flags.no_repack;
  const SparseOptions sparse = with_sparse_drafts(options.sparse, options.spec);
  runner_options.sparse = sparse;
  BlockLoader loader(options.on_miss, options.home.lookahead);
  if (options.home.is_on()) {
    runner_options.selection_listener = &loader;
  }
  auto runner = load_model(flags.model_path, runner_options, [&](double share) {
    loading.update(static_cast<std::int64_t>(share * 1000), 1000);
    return !interrupt.flag();
  });
  loading.finish();
  if (interrupt.flag()) {
    return kExitInterrupted;
  }
  if (!runner) {
    return fail(std::move(runner.error()));
  }
  auto key_index =
      attach_key_index(**kv, sparse, **runner, **tokenizer, options.chunk_tokens, *context);
  if (!key_index) {
    return fail(std::move(key_index.error()));
  }
  auto speculation =
      make_speculation(options.spec, {.tokenizer = tokenizer->get(),
                                      .runner = runner->get(),
                                      .kv = kv->get(),
                                      .key_index = key_index->get(),
                                      .loader = options.home.is_on() ? &loader : nullptr,
                                      .kv_type = options.kv_type,
                                      .num_threads = options.threads,
                                      .context_tokens = *context,
                                      .max_batch_tokens = options.chunk_tokens,
                                      .repack_weights = !flags.no_repack});
  if (!speculation) {
    return fail(std::move(speculation.error()));
  }
  report.load_seconds = std::chrono::duration<double>(SteadyClock::now() - load_start).count();

  AnswerStream answer;
  Progress prefill("prompt", "tokens");
  GeneratorCallbacks callbacks;
  callbacks.on_prefill = [&](int done, int total) {
    prefill.update(done, total);
    if (done == total) {
      prefill.finish();
    }
  };
  callbacks.on_text = [&](std::string_view text) { return answer.write(text); };
  std::optional<WindowCompressor> compressor;
  if (generator_options.compression.is_on()) {
    compressor.emplace(
        **kv, key_index->get(), options.compression,
        WindowCompressor::Attention{config->attention_scale, config->attention_logit_softcap});
  }
  Generator generator(**runner, **kv, TokenText::of(**tokenizer), key_index->get(),
                      options.home.is_on() ? &loader : nullptr, speculation->get(),
                      compressor ? &*compressor : nullptr);
  auto result = generator.run(*tokens, generator_options, **sampler, callbacks, interrupt.flag());
  prefill.finish();
  answer.end_line();
  if (!result) {
    return fail(std::move(result.error()));
  }
  report.result = *result;
  report.missed = loader.take_missed();
  report.decode_times = (*runner)->take_step_times();

  write_stderr(fmt::format("\n{}", to_table(report)));
  if (flags.verbose) {
    print_details(*config, report);
  }
  if (!flags.json_file.empty()) {
    if (auto written = write_text_file(flags.json_file, to_json(report)); !written) {
      return fail(std::move(written.error()));
    }
  }
  if (answer.failed()) {
    return report_error("standard output: " + answer.error(), kExitFailure);
  }
  return result->finish_reason == FinishReason::kCancelled ? kExitInterrupted : kExitOk;
}

}  // namespace

void add_generate_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("generate", "Answer one prompt on the terminal");
  auto flags = std::make_shared<GenerateFlags>();
  add_generate_flags(*command, *flags);
  command->callback([flags, &exit_code] {
    auto code = generate(*flags);
    exit_code = code ? *code : report_error(code.error());
  });
}

}  // namespace karez
