#include "model/weight_store.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "model/widened_weights.h"

namespace karez {

namespace {

ggml_context_ptr make_context(std::size_t max_tensors) {
  return ggml_context_ptr(ggml_init(
      {.mem_size = ggml_tensor_overhead() * max_tensors, .mem_buffer = nullptr, .no_alloc = true}));
}

// The buffer types with layouts made for fast products, as this build of ggml offers them.
std::vector<ggml_backend_buffer_type_t> find_fast_buffer_types() {
  std::vector<ggml_backend_buffer_type_t> types;
  ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  if (device == nullptr) {
    return types;
  }
  const auto get_extra_buffer_types =
      reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(ggml_backend_reg_get_proc_address(
          ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts"));
  if (get_extra_buffer_types == nullptr) {
    return types;
  }
  for (auto* type = get_extra_buffer_types(device); type != nullptr && *type != nullptr; ++type) {
    types.push_back(*type);
  }
  return types;
}

// Gives the pages of a range of the file back again and again while somebody reads through it, so
// that a large tensor is not in memory twice while it is copied.
class PageSweeper {
 public:
  PageSweeper(const GgufFile& file, std::span<const std::byte> range)
      : thread_([&file, range](const std::stop_token& stop) {
          constexpr std::chrono::milliseconds kPause(5);
          while (!stop.stop_requested()) {
            std::this_thread::sleep_for(kPause);
            file.drop_pages(range);
          }
        }) {}

 private:
  std::jthread thread_;
};
constexpr std::size_t kLargeTensorBytes = 32 << 20;

// Tensors beyond those of the file: glued and repeated ones, output duplicates.
constexpr std::size_t kExtraTensors = 64;

// Memory beyond the weights themselves is meant to stay small, whatever the model.
constexpr std::size_t kMaxWideningBytes = 48 << 20;
static_assert(kGgufQ5_0 == GGML_TYPE_Q5_0 && kGgufQ8_0 == GGML_TYPE_Q8_0);

std::int64_t num_elements(const GgufTensor& tensor) {
  std::int64_t count = 1;
  for (const std::int64_t length : tensor.shape) {
    count *= length;
  }
  return count;
}

// The source's numbers as the tensor's type, behind `out`.
void append(const GgufTensor& source, ggml_type type, std::vector<std::byte>& out) {
  if (static_cast<ggml_type>(source.type) == type) {
    out.insert(out.end(), source.data.begin(), source.data.end());
    return;
  }
  const std::size_t used = out.size();
  out.resize(used + ggml_row_size(type, num_elements(source)));
  widen(source.type, source.data, num_elements(source), out.data() + used);
}

}  // namespace

WeightStore::WeightStore(GgufFile file, bool repack)
    : file_(std::move(file)), widening_bytes_left_(kMaxWideningBytes) {
  if (repack) {
    fast_types_ = find_fast_buffer_types();
  }
  const std::span<const std::byte> bytes = file_.bytes();
  // ggml has no read-only tensors; nothing writes to weights.
  mapped_buffer_.reset(
      ggml_backend_cpu_buffer_from_ptr(const_cast<std::byte*>(bytes.data()), bytes.size()));
  mapped_context_ = make_context(file_.tensors().size() + kExtraTensors);
}

Expected<const GgufTensor*> WeightStore::find(const std::string& name, std::int64_t columns,
                                              std::int64_t rows) const {
  const GgufTensor* tensor = file_.find_tensor(name);
  if (tensor == nullptr) {
    return fail(StatusCode::kCorruption,
                fmt::format("{}: tensor '{}' is missing", file_.path(), name));
  }
  std::vector<std::int64_t> wanted = {columns, rows};
  std::vector<std::int64_t> shape = tensor->shape;
  while (shape.size() > 1 && shape.back() == 1) {
    shape.pop_back();
  }
  while (wanted.size() > 1 && wanted.back() == 1) {
    wanted.pop_back();
  }
  if (shape != wanted) {
    return fail(StatusCode::kCorruption,
                fmt::format("{}: tensor '{}' has shape [{}], expected [{}]", file_.path(), name,
                            fmt::join(tensor->shape, ", "), fmt::join(wanted, ", ")));
  }
  return tensor;
}

Expected<std::vector<float>> WeightStore::read_vector(const std::string& name,
                                                      std::int64_t length) const {
  const Expected<const GgufTensor*> tensor = find(name, length, 1);
  if (!tensor) {
    return fail(tensor.error());
  }
  std::vector<float> values(static_cast<std::size_t>(length));
  const auto type = static_cast<ggml_type>((*tensor)->type);
  if (type == GGML_TYPE_F32) {
    std::memcpy(values.data(), (*tensor)->data.data(), values.size() * sizeof(float));
    return values;
  }
  const ggml_type_traits* traits = ggml_get_type_traits(type);
  if (traits->to_float == nullptr) {
    return fail(StatusCode::kCorruption,
                fmt::format("{}: tensor '{}' has type {}, expected a floating-point type",
                            file_.path(), name, ggml_type_name(type)));
  }
  traits->to_float((*tensor)->data.data(), values.data(), length);
  return values;
}

ggml_tensor* WeightStore::add_filled(std::vector<float> values, std::int64_t columns,
                                     std::int64_t rows) {
  ggml_tensor* tensor =
      ggml_new_tensor_2d(context_for(ggml_backend_cpu_buffer_type()), GGML_TYPE_F32, columns, rows);
  filled_.push_back({tensor, std::move(values)});
  return tensor;
}

Expected<ggml_tensor*> WeightStore::vector(const std::string& name, std::int64_t length) {
  Expected<std::vector<float>> values = read_vector(name, length);
  if (!values) {
    return fail(values.error());
  }
  return add_filled(std::move(*values), length, 1);
}

Expected<ggml_tensor*> WeightStore::optional_vector(const std::string& name, std::int64_t length) {
  return file_.find_tensor(name) == nullptr ? nullptr : vector(name, length);
}

Expected<ggml_tensor*> WeightStore::repeated_vectors(std::span<const Repeated> parts,
                                                     std::int64_t length) {
  std::vector<float> all;
  std::int64_t rows = 0;
  for (const Repeated& part : parts) {
    const Expected<std::vector<float>> values = read_vector(part.name, length);
    if (!values) {
      return fail(values.error());
    }
    for (int i = 0; i < part.repeat; ++i) {
      all.insert(all.end(), values->begin(), values->end());
    }
    rows += part.repeat;
  }
  return add_filled(std::move(all), length, rows);
}

Expected<ggml_tensor*> WeightStore::glued_vector(std::span<const Part> parts) {
  std::vector<float> all;
  bool any = false;
  for (const Part& part : parts) {
    std::vector<float> values(static_cast<std::size_t>(part.length), 0.0F);
    if (file_.find_tensor(part.name) != nullptr) {
      Expected<std::vector<float>> read = read_vector(part.name, part.length);
      if (!read) {
        return fail(read.error());
      }
      values = std::move(*read);
      any = true;
    }
    all.insert(all.end(), values.begin(), values.end());
  }
  if (!any) {
    return nullptr;
  }
  const auto length = static_cast<std::int64_t>(all.size());
  return add_filled(std::move(all), length, 1);
}

Expected<ggml_tensor*> WeightStore::matrix(const std::string& name, std::int64_t columns,
                                           std::int64_t rows) {
  const Expected<const GgufTensor*> source = find(name, columns, rows);
  if (!source) {
    return fail(source.error());
  }
  const ggml_type type = product_type(**source);
  if (fast_buffer_type(type, columns, rows) == nullptr) {
    return map_tensor(**source, columns, rows);
  }
  return add_matrix({*source}, type, columns, rows);
}

Expected<ggml_tensor*> WeightStore::glued_matrix(std::span<const Part> parts,
                                                 std::int64_t columns) {
  std::vector<const GgufTensor*> sources;
  std::int64_t rows = 0;
  for (const Part& part : parts) {
    const Expected<const GgufTensor*> source = find(part.name, columns, part.length);
    if (!source) {
      return fail(source.error());
    }
    sources.push_back(*source);
    rows += part.length;
  }
  const std::size_t budget = widening_bytes_left_;
  const ggml_type type = product_type(*sources.front());
  const bool same_type = std::all_of(sources.begin() + 1, sources.end(),
                                     [&](const GgufTensor* s) { return product_type(*s) == type; });
  if (!same_type || fast_buffer_type(type, columns, rows) == nullptr) {
    widening_bytes_left_ = budget;  // they are asked for again, one by one
    return nullptr;
  }
  return add_matrix(std::move(sources), type, columns, rows);
}

Expected<ggml_tensor*> WeightStore::embedding(const std::string& name, std::int64_t columns,
                                              std::int64_t rows) {
  const Expected<const GgufTensor*> source = find(name, columns, rows);
  if (!source) {
    return fail(source.error());
  }
  embeddings_.push_back(*source);
  return map_tensor(**source, columns, rows);
}

ggml_tensor* WeightStore::map_tensor(const GgufTensor& source, std::int64_t columns,
                                     std::int64_t rows) {
  ggml_tensor* tensor =
      ggml_new_tensor_2d(mapped_context_.get(), static_cast<ggml_type>(source.type), columns, rows);
  ggml_backend_tensor_alloc(mapped_buffer_.get(), tensor,
                            const_cast<std::byte*>(source.data.data()));
  return tensor;
}

ggml_type WeightStore::product_type(const GgufTensor& source) {
  const auto type = static_cast<ggml_type>(source.type);
  const std::optional<std::uint32_t> wider_type = widened_type(source.type);
  if (!wider_type) {
    return type;
  }
  const auto wider = static_cast<ggml_type>(*wider_type);
  if (source.shape.size() < 2 ||
      fast_buffer_type(type, source.shape[0], source.shape[1]) != nullptr ||
      fast_buffer_type(wider, source.shape[0], source.shape[1]) == nullptr) {
    return type;
  }
  const std::size_t extra = ggml_row_size(wider, num_elements(source)) - source.data.size();
  if (extra > widening_bytes_left_) {
    return type;
  }
  widening_bytes_left_ -= extra;
  return wider;
}

Expected<ggml_tensor*> WeightStore::add_matrix(std::vector<const GgufTensor*> sources,
                                               ggml_type type, std::int64_t columns,
                                               std::int64_t rows) {
  ggml_tensor* tensor =
      ggml_new_tensor_2d(context_for(fast_buffer_type(type, columns, rows)), type, columns, rows);
  copies_.push_back({tensor, std::move(sources)});
  return tensor;
}

ggml_backend_buffer_type_t WeightStore::fast_buffer_type(ggml_type type, std::int64_t columns,
                                                         std::int64_t rows) const {
  for (ggml_backend_buffer_type_t candidate : fast_types_) {
    // ggml answers for a node whose weight claims to live in such a buffer.
    const ggml_context_ptr context = make_context(4);
    ggml_tensor* weight = ggml_new_tensor_2d(context.get(), type, columns, rows);
    ggml_tensor* input = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, columns, 512);
    ggml_tensor* product = ggml_mul_mat(context.get(), weight, input);
    const ggml_backend_buffer_ptr buffer(ggml_backend_buft_alloc_buffer(candidate, 0));
    weight->buffer = buffer.get();
    if (ggml_backend_dev_supports_op(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU),
                                     product)) {
      return candidate;
    }
  }
  return nullptr;
}

ggml_context* WeightStore::context_for(ggml_backend_buffer_type_t type) {
  const auto found = std::find_if(pools_.begin(), pools_.end(),
                                  [&](const Pool& pool) { return pool.type == type; });
  if (found != pools_.end()) {
    return found->context.get();
  }
  pools_.push_back({type, make_context(2 * file_.tensors().size() + kExtraTensors), nullptr});
  return pools_.back().context.get();
}

Expected<void> WeightStore::upload(const std::function<bool(double)>& progress) {
  for (Pool& pool : pools_) {
    pool.buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(pool.context.get(), pool.type));
    if (pool.buffer == nullptr) {
      return fail(StatusCode::kResourceExhausted,
                  fmt::format("{}: no memory for weights in {} buffers", file_.path(),
                              ggml_backend_buft_name(pool.type)));
    }
    ggml_backend_buffer_set_usage(pool.buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  }
  for (const Filled& filled : filled_) {
    ggml_backend_tensor_set(filled.tensor, filled.values.data(), 0,
                            filled.values.size() * sizeof(float));
  }
  filled_.clear();

  std::size_t total = 0;
  for (const Copy& copy : copies_) {
    total += ggml_nbytes(copy.tensor);
  }
  std::size_t done = 0;
  std::vector<std::byte> glued;
  for (const Copy& copy : copies_) {
    const std::byte* bytes = copy.sources.front()->data.data();
    const auto file_type = static_cast<ggml_type>(copy.sources.front()->type);
    if (copy.sources.size() > 1 || file_type != copy.tensor->type) {
      glued.clear();
      for (const GgufTensor* source : copy.sources) {
        append(*source, copy.tensor->type, glued);
      }
      bytes = glued.data();
    }
    {
      std::optional<PageSweeper> sweeper;
      if (bytes == copy.sources.front()->data.data() &&
          ggml_nbytes(copy.tensor) > kLargeTensorBytes) {
        sweeper.emplace(file_, copy.sources.front()->data);
      }
      ggml_backend_tensor_set(copy.tensor, bytes, 0, ggml_nbytes(copy.tensor));
    }
    for (const GgufTensor* source : copy.sources) {
      file_.drop_pages(source->data);
    }
    done += ggml_nbytes(copy.tensor);
    if (progress && !progress(static_cast<double>(done) / static_cast<double>(total))) {
      return fail(StatusCode::kCancelled, fmt::format("{}: loading was stopped", file_.path()));
    }
  }
  std::erase_if(embeddings_, [&](const GgufTensor* embedding) {
    return std::none_of(copies_.begin(), copies_.end(), [&](const Copy& copy) {
      return std::find(copy.sources.begin(), copy.sources.end(), embedding) != copy.sources.end();
    });
  });
  copies_.clear();
  return {};
}

void WeightStore::give_back_embedding_pages() const {
  for (const GgufTensor* embedding : embeddings_) {
    file_.drop_pages(embedding->data);
  }
}

}  // namespace karez
