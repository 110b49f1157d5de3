#include "model/llama_reference.h"

#include <fmt/format.h>
#include <llama.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "model/llama_log.h"

namespace karez {
namespace {

constexpr std::array<ggml_type, 4> kCacheTypes = {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16,
                                                  GGML_TYPE_Q8_0};

Expected<ggml_type> parse_cache_type(std::string_view name, std::string_view option) {
  for (const ggml_type type : kCacheTypes) {
    if (name == ggml_type_name(type)) {
      return type;
    }
  }
  return fail(StatusCode::kInvalidArgument,
              fmt::format("{} is '{}', allowed are f32, f16, bf16 and q8_0", option, name));
}

Expected<void> check_at_least(int value, int minimum, std::string_view option) {
  if (value < minimum) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("{} is {}, allowed are values from {}", option, value, minimum));
  }
  return {};
}

Expected<void> validate(const LlamaReferenceOptions& options) {
  const std::array<std::pair<int, std::string_view>, 4> counts = {{
      {options.num_threads, "num_threads"},
      {options.context_tokens, "context_tokens"},
      {options.num_sequences, "num_sequences"},
      {options.batch_tokens, "batch_tokens"},
  }};
  for (const auto& [value, name] : counts) {
    if (auto ok = check_at_least(value, 1, name); !ok) {
      return ok;
    }
  }
  const auto max_sequences = static_cast<int>(llama_max_parallel_sequences());
  if (options.num_sequences > max_sequences) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("num_sequences is {}, libllama allows at most {}",
                            options.num_sequences, max_sequences));
  }
  if (options.max_output_rows != 0) {
    return check_at_least(options.max_output_rows, options.num_sequences, "max_output_rows");
  }
  return {};
}

Status library_failure(std::string what) {
  const std::string words = take_llama_errors();
  return Status(StatusCode::kInternal,
                words.empty() ? std::move(what) : fmt::format("{} ({})", what, words));
}

struct ModelFree {
  void operator()(llama_model* model) const { llama_model_free(model); }
};
struct ContextFree {
  void operator()(llama_context* context) const { llama_free(context); }
};

void set_row(llama_batch& batch, std::size_t index, const LlamaReference::Row& row) {
  batch.token[index] = row.token;
  batch.pos[index] = row.position;
  batch.n_seq_id[index] = 1;
  batch.seq_id[index][0] = row.sequence;
  batch.logits[index] = row.want_logits ? 1 : 0;
}

}  // namespace

struct LlamaReference::Impl {
  explicit Impl(int capacity) : batch(llama_batch_init(capacity, 0, 1)), batch_tokens(capacity) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() { llama_batch_free(batch); }

  llama_memory_t memory() const { return llama_get_memory(context.get()); }

  std::unique_ptr<llama_model, ModelFree> model;
  std::unique_ptr<llama_context, ContextFree> context;  // after model: freed first
  llama_batch batch;
  int batch_tokens = 0;
  int max_output_rows = 0;
  int num_sequences = 0;
  int vocab_size = 0;
};

Expected<std::unique_ptr<LlamaReference>> LlamaReference::load(
    const std::string& path, const LlamaReferenceOptions& options) {
  silence_llama_log();
  if (auto ok = validate(options); !ok) {
    return fail(ok.error());
  }
  const auto type_k = parse_cache_type(options.cache_type_k, "cache_type_k");
  if (!type_k) {
    return fail(type_k.error());
  }
  const auto type_v = parse_cache_type(options.cache_type_v, "cache_type_v");
  if (!type_v) {
    return fail(type_v.error());
  }
  if (ggml_is_quantized(*type_v) && !options.flash_attention) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("cache_type_v is {} without flash attention; libllama computes it with "
                            "flash attention only",
                            options.cache_type_v));
  }

  static std::once_flag backend_once;
  std::call_once(backend_once, [] { llama_backend_init(); });

  auto impl = std::make_unique<Impl>(options.batch_tokens);
  llama_model_params model_params = llama_model_default_params();
  model_params.n_gpu_layers = 0;
  model_params.load_mode = LLAMA_LOAD_MODE_MMAP;
  model_params.use_extra_bufts = options.repack_weights;
  impl->model.reset(llama_model_load_from_file(path.c_str(), model_params));
  if (impl->model == nullptr) {
    return fail(library_failure(fmt::format("{}: libllama cannot load this model", path)));
  }

  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<std::uint32_t>(options.context_tokens + 255) / 256 * 256 *
                 static_cast<std::uint32_t>(options.num_sequences);
  params.n_seq_max = static_cast<std::uint32_t>(options.num_sequences);
  params.n_batch = static_cast<std::uint32_t>(options.batch_tokens);
  params.n_ubatch = params.n_batch;
  params.n_outputs_max = static_cast<std::uint32_t>(options.max_output_rows);
  params.n_threads = options.num_threads;
  params.n_threads_batch = options.num_threads;
  params.type_k = *type_k;
  params.type_v = *type_v;
  params.flash_attn_type =
      options.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.offload_kqv = false;
  params.op_offload = false;
  params.no_perf = true;
  params.swa_full = false;
  params.kv_unified = false;
  impl->context.reset(llama_init_from_model(impl->model.get(), params));
  if (impl->context == nullptr) {
    return fail(library_failure(
        fmt::format("{}: libllama cannot make a context of {} x {} tokens with K {} and V {}", path,
                    options.num_sequences, options.context_tokens, options.cache_type_k,
                    options.cache_type_v)));
  }

  impl->max_output_rows =
      options.max_output_rows == 0 ? options.batch_tokens : options.max_output_rows;
  impl->num_sequences = options.num_sequences;
  impl->vocab_size = llama_vocab_n_tokens(llama_model_get_vocab(impl->model.get()));
  return std::unique_ptr<LlamaReference>(new LlamaReference(std::move(impl)));
}

LlamaReference::LlamaReference(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LlamaReference::~LlamaReference() = default;

Expected<std::span<const float>> LlamaReference::decode(std::span<const Row> rows) {
  if (rows.empty() || rows.size() > static_cast<std::size_t>(impl_->batch_tokens)) {
    return fail(StatusCode::kInvalidArgument, fmt::format("a batch of {} rows, allowed are 1 to {}",
                                                          rows.size(), impl_->batch_tokens));
  }
  int num_outputs = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    if (row.token < 0 || row.token >= impl_->vocab_size || row.sequence < 0 ||
        row.sequence >= impl_->num_sequences || row.position < 0) {
      return fail(StatusCode::kInvalidArgument,
                  fmt::format("row {} has token {}, sequence {}, position {}; the model has {} "
                              "tokens and the context {} sequences",
                              i, row.token, row.sequence, row.position, impl_->vocab_size,
                              impl_->num_sequences));
    }
    num_outputs += row.want_logits ? 1 : 0;
    set_row(impl_->batch, i, row);
  }
  if (num_outputs > impl_->max_output_rows) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("logits of {} rows asked for, allowed are at most {}", num_outputs,
                            impl_->max_output_rows));
  }
  impl_->batch.n_tokens = static_cast<std::int32_t>(rows.size());
  const int result = llama_decode(impl_->context.get(), impl_->batch);
  if (result != 0) {
    return fail(library_failure(fmt::format("llama_decode answers {}{}", result,
                                            result == 1 ? ": no room in its context" : "")));
  }
  llama_synchronize(impl_->context.get());
  if (num_outputs == 0) {
    return std::span<const float>();
  }
  return std::span<const float>(
      llama_get_logits(impl_->context.get()),
      static_cast<std::size_t>(num_outputs) * static_cast<std::size_t>(impl_->vocab_size));
}

void LlamaReference::copy_sequence(int from, int to) {
  KAREZ_CHECK(from >= 0 && from < impl_->num_sequences && to >= 0 && to < impl_->num_sequences,
              "no such sequence");
  llama_memory_seq_cp(impl_->memory(), from, to, -1, -1);
}

void LlamaReference::remove_tokens(int sequence, int from_position) {
  KAREZ_CHECK(sequence >= 0 && sequence < impl_->num_sequences, "no such sequence");
  const bool removed = llama_memory_seq_rm(impl_->memory(), sequence, from_position, -1);
  KAREZ_CHECK(removed, "libllama cannot remove a part of this model's memory");
}

void LlamaReference::clear() { llama_memory_clear(impl_->memory(), false); }

int LlamaReference::vocab_size() const { return impl_->vocab_size; }

}  // namespace karez
