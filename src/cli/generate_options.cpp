#include "cli/generate_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <limits>
#include <random>
#include <utility>

#include "cli/flag_checks.h"
#include "cli/kv_type_flags.h"
#include "cli/text_file.h"
#include "engine/default_threads.h"

namespace karez {
namespace {

constexpr std::size_t kMaxGrammarBytes = 1 << 20;

Expected<void> fill_sampling(GenerateFlags& flags) {
  if (!flags.grammar_file.empty()) {
    auto text = read_text_file(flags.grammar_file, kMaxGrammarBytes);
    if (!text) {
      return fail(std::move(text.error()));
    }
    flags.sampling.grammar = std::move(*text);
  }
  constexpr std::int64_t kMaxSeed = std::numeric_limits<std::uint32_t>::max();
  if (flags.seed < -1 || flags.seed > kMaxSeed) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("-s is {}, allowed are -1 (random) and 0 to {}", flags.seed, kMaxSeed));
  }
  // Drawn here, so that the report can name the seed that makes the same answer again.
  const bool random = flags.seed == -1 || flags.seed == kMaxSeed;
  flags.sampling.seed =
      random ? std::random_device()() % 1'000'000'000U : static_cast<std::uint32_t>(flags.seed);
  return flags.sampling.validate();
}

}  // namespace

void add_generate_flags(CLI::App& command, GenerateFlags& flags) {
  command.add_option("-m,--model", flags.model_path, "GGUF model file")
      ->required()
      ->type_name("FILE");
  command
      .add_option_function<std::string>(
          "-p,--prompt",
          [&](const std::string& text) {
            flags.prompt = text;
            flags.has_prompt = true;
          },
          "Prompt. With -f: put after the file's text and a blank line")
      ->type_name("TEXT");
  command.add_option("-f,--file", flags.prompt_file, "Read the prompt from a file")
      ->type_name("FILE");
  command.add_option("--system-prompt", flags.system_prompt, "System message (-sys)")
      ->type_name("TEXT");
  command
      .add_option("--chat-template", flags.chat_template,
                  "Chat template instead of the model's: chatml, gemma, llama3, mistral-v3, ...")
      ->type_name("NAME");
  command.add_flag("--raw", flags.raw,
                   "Use the prompt as it is, without the model's chat template; control tokens "
                   "written in it count");
  command
      .add_option("-n,--predict", flags.max_tokens,
                  "Tokens to generate at most; -1: until the answer or the context ends")
      ->capture_default_str()
      ->type_name("N");
  command
      .add_option("-c,--ctx-size", flags.context_tokens,
                  "Tokens of prompt and answer together; 0: what the model was trained for")
      ->capture_default_str()
      ->type_name("N");
  command
      .add_option_function<std::int64_t>(
          "-t,--threads",
          [&](const std::int64_t& threads) {
            flags.threads = threads;
            flags.has_threads = true;
          },
          "Threads (default: physical cores)")
      ->type_name("N");
  command
      .add_option("--ubatch-size", flags.chunk_tokens,
                  "Prompt tokens in one pass through the model (-ub)")
      ->capture_default_str()
      ->type_name("N");
  command
      .add_option("--kv-fast-bytes", flags.kv_fast_bytes,
                  "Hard cap of the KV cache, such as 512MiB (default: enough for the context)")
      ->type_name("BYTES");
  command
      .add_option("--cache-type-k", flags.cache_type_k,
                  "Type of stored keys (-ctk): f32 bf16 q8_0 (default: bf16)")
      ->type_name("TYPE");
  command
      .add_option("--cache-type-v", flags.cache_type_v,
                  "Type of stored values (-ctv), the same as that of keys")
      ->type_name("TYPE");
  command.add_flag("--no-repack", flags.no_repack,
                   "Keep the weights in the layout of the file: less memory, slower");

  add_token_budget_flag(command, flags.sparse);
  add_selection_flags(command, flags.sparse);
  add_tier_flags(command, flags.tiers);
  add_spec_flags(command, flags.spec);
  add_compress_flags(command, flags.compress, "Compress the KV of the answer as it ages");

  const auto number = [&](const std::string& name, auto& value, const std::string& help) {
    command.add_option(name, value, help)->capture_default_str()->type_name("N")->group("Sampling");
  };
  SamplingParams& sampling = flags.sampling;
  number("--temp", sampling.temperature, "Temperature; 0: always the most likely token");
  number("--top-k", sampling.top_k, "Among the k most likely tokens; 0: off");
  number("--top-p", sampling.top_p, "Among the most likely with this total probability; 1: off");
  number("--min-p", sampling.min_p, "Among those with this share of the top probability; 0: off");
  number("--typical", sampling.typical_p, "Locally typical sampling; 1: off");
  number("--repeat-penalty", sampling.repeat_penalty, "Penalty for repeated tokens; 1: off");
  number("--repeat-last-n", sampling.repeat_last_n, "Tokens that penalties look at; -1: all");
  number("--presence-penalty", sampling.presence_penalty, "Penalty for present tokens; 0: off");
  number("--frequency-penalty", sampling.frequency_penalty, "Penalty by frequency; 0: off");
  number("-s,--seed", flags.seed, "Seed of the draw; -1: random");
  auto* grammar = command.add_option("--grammar", sampling.grammar, "GBNF grammar of the answer")
                      ->type_name("TEXT")
                      ->group("Sampling");
  command.add_option("--grammar-file", flags.grammar_file, "The same from a file")
      ->type_name("FILE")
      ->group("Sampling")
      ->excludes(grammar);
  command
      .add_option_function<std::string>(
          "--stop", [&](const std::string& text) { sampling.stop.push_back(text); },
          "End the answer before this text; may be given several times")
      ->type_name("TEXT")
      ->group("Sampling")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->trigger_on_parse();

  command
      .add_flag("--ignore-eos", flags.ignore_eos, "Go on behind the end of the answer, up to -n")
      ->group("Sampling");

  command.add_option("--json", flags.json_file, "Write the figures of the closing table here")
      ->type_name("FILE");
  command.add_flag("-v,--verbose", flags.verbose, "Say more about the model and the time");
}

Expected<GenerateOptions> check_generate_flags(GenerateFlags flags) {
  GenerateOptions options;
  constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();
  if (flags.max_tokens == 0) {
    return fail(StatusCode::kInvalidArgument,
                "-n is 0, allowed are -1 (until the end) and 1 or more");
  }
  auto max_tokens = in_range("-n", flags.max_tokens, -1, kMaxInt);
  if (!max_tokens) {
    return fail(std::move(max_tokens.error()));
  }
  options.max_tokens = *max_tokens;
  options.threads = default_num_threads();
  if (flags.has_threads) {
    auto threads = in_range("-t", flags.threads, 1, kMaxThreads);
    if (!threads) {
      return fail(std::move(threads.error()));
    }
    options.threads = *threads;
  }
  auto chunk = in_range("-ub", flags.chunk_tokens, 1, 16384);
  if (!chunk) {
    return fail(std::move(chunk.error()));
  }
  options.chunk_tokens = *chunk;
  auto kv_type = kv_type_of_flags(flags.cache_type_k, flags.cache_type_v);
  if (!kv_type) {
    return fail(std::move(kv_type.error()));
  }
  options.kv_type = *kv_type;
  if (auto used = check_selection_is_used(flags.sparse); !used) {
    return fail(std::move(used.error()));
  }
  auto sparse = check_sparse_flags(flags.sparse);
  if (!sparse) {
    return fail(std::move(sparse.error()));
  }
  options.sparse = *sparse;
  auto tiers = check_tiers_and_drafts(flags.tiers, flags.spec, options.sparse);
  if (!tiers) {
    return fail(std::move(tiers.error()));
  }
  options.home = std::move(tiers->home);
  options.spec = std::move(tiers->spec);
  options.on_miss = tiers->on_miss;
  if (auto used = check_compression_is_used(flags.compress); !used) {
    return fail(std::move(used.error()));
  }
  auto compression = check_compress_flags(flags.compress);
  if (!compression) {
    return fail(std::move(compression.error()));
  }
  options.compression = *compression;
  auto kv_fast_bytes = optional_size("--kv-fast-bytes", flags.kv_fast_bytes);
  if (!kv_fast_bytes) {
    return fail(std::move(kv_fast_bytes.error()));
  }
  options.kv_fast_bytes = *kv_fast_bytes;
  if (!flags.has_prompt && flags.prompt_file.empty()) {
    return fail(StatusCode::kInvalidArgument, "there is no prompt; give -p TEXT or -f FILE");
  }
  if (flags.raw && !(flags.system_prompt.empty() && flags.chat_template.empty())) {
    return fail(StatusCode::kInvalidArgument,
                "--raw excludes --system-prompt and --chat-template: a raw prompt has no messages");
  }
  if (auto sampling = fill_sampling(flags); !sampling) {
    return fail(std::move(sampling.error()));
  }
  options.flags = std::move(flags);
  return options;
}

}  // namespace karez
