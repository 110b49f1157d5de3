#include "model/ggml_model_runner.h"

#include <fmt/format.h>
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpp.h>
#include <ggml-cpu.h>

#include <algorithm>
#include <chrono>
#include <list>
#include <utility>
#include <vector>

#include "attention/paged_attention.h"
#include "base/check.h"
#include "kv/kv_cache_manager.h"
#include "model/architecture.h"
#include "model/attention_nodes.h"
#include "model/gguf_file.h"
#include "model/llama_log.h"
#include "model/model_weights.h"
#include "model/step_graph.h"
#include "model/weight_store.h"

namespace karez {

namespace {

// Decode batches come in as many shapes as there are numbers of running sequences; a graph's
// description is a few hundred KiB.
constexpr std::size_t kMaxCachedGraphs = 16;

// The kernel maps 64 KiB around each page of the embedding that a row touches: so many rows are
// 32 MiB at most.
constexpr std::size_t kRowsPerGiveBack = 512;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class GgmlModelRunner final : public ModelRunner {
 public:
  GgmlModelRunner(ModelConfig config, const Architecture& architecture, WeightStore store,
                  ModelWeights weights, std::unique_ptr<PagedAttention> attention,
                  const ModelRunnerOptions& options)
      : config_(std::move(config)),
        architecture_(architecture),
        store_(std::move(store)),
        weights_(std::move(weights)),
        attention_(std::move(attention)),
        nodes_(*attention_, config_.num_layers, options.num_threads,
               options.sparse.is_on() || options.selection_listener != nullptr),
        ranks_ahead_(options.sparse.rank_ahead && options.selection_listener != nullptr),
        trace_(options.trace),
        backend_(ggml_backend_cpu_init()),
        allocator_(ggml_gallocr_new(ggml_backend_cpu_buffer_type())) {
    ggml_backend_cpu_set_n_threads(backend_.get(), options.num_threads);
    attention_->set_selection_listener(options.selection_listener);
  }

  const ModelConfig& config() const override { return config_; }

  Expected<std::span<const float>> forward(const ForwardBatch& batch, KVCacheManager& kv) override {
    const auto start = std::chrono::steady_clock::now();
    KAREZ_CHECK(!batch.tokens.empty(), "a batch has at least one row");
    fill_positions(batch);
    nodes_.begin_step(batch.sequences, kv, batch.key_index);
    // Estimated queries cost a projection for every row: not where most rows need none.
    const int num_rows = static_cast<int>(batch.tokens.size());
    const bool has_outputs = !batch.output_rows.empty();
    output_rows_.assign(batch.output_rows.begin(), batch.output_rows.end());
    // Without outputs the last layer attends to nothing, and its queries would not be kept.
    if (!has_outputs && std::ranges::any_of(batch.sequences, &SequenceRows::queries)) {
      output_rows_.push_back(num_rows - 1);
    }
    const Expected<StepGraph*> graph =
        graph_for({.num_rows = num_rows,
                   .num_outputs = static_cast<int>(output_rows_.size()),
                   .ranks_ahead = ranks_ahead_ && 2 * attention_->num_sparse_rows() >= num_rows});
    if (!graph) {
      return fail(graph.error());
    }

    const auto graph_start = std::chrono::steady_clock::now();
    const Expected<void> computed =
        (*graph)->compute(backend_.get(), batch.tokens, positions_, output_rows_);
    const auto graph_end = std::chrono::steady_clock::now();
    const double graph_seconds = std::chrono::duration<double>(graph_end - graph_start).count();
    if (!computed) {
      return fail(computed.error());
    }

    const AttentionTimes attention = nodes_.end_step();
    times_.attention += attention.total;
    times_.select += attention.select;
    times_.attend += attention.attend;
    times_.rank += attention.rank;
    times_.dense += graph_seconds - attention.total;
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      times_.attention_read_bytes += attention_->planned_read_bytes(layer);
      times_.index_read_bytes += attention_->planned_index_bytes(layer);
      archived_pages_read_ += attention_->planned_archived_pages(layer);
    }
    rows_since_give_back_ += batch.tokens.size();
    if (rows_since_give_back_ >= kRowsPerGiveBack) {
      store_.give_back_embedding_pages();
      rows_since_give_back_ = 0;
    }
    times_.steps += 1;
    const double total = seconds_since(start);
    times_.total += total;
    times_.other += total - graph_seconds;
    if (trace_ != nullptr) {
      trace_->add({.name = "step",
                   .items = static_cast<std::int64_t>(batch.tokens.size()),
                   .begin = start,
                   .end = std::chrono::steady_clock::now()});
      nodes_.trace_step(*trace_, graph_start, graph_end);
    }
    return has_outputs ? (*graph)->logits() : std::span<const float>();
  }

  StepTimes take_step_times() override { return std::exchange(times_, {}); }
  std::int64_t archived_pages_read() const override { return archived_pages_read_; }
  std::vector<RecallSample> take_recall() override { return attention_->take_recall(); }

 private:
  void fill_positions(const ForwardBatch& batch) {
    positions_.clear();
    for (const SequenceRows& rows : batch.sequences) {
      KAREZ_CHECK(rows.first_row == static_cast<int>(positions_.size()),
                  "sequences cover the rows of the batch in order");
      for (int i = 0; i < rows.num_rows; ++i) {
        positions_.push_back(rows.first_position + i);
      }
    }
    KAREZ_CHECK(positions_.size() == batch.tokens.size(), "every row belongs to a sequence");
  }

  // The graph for this shape, most recently used first.
  Expected<StepGraph*> graph_for(StepGraph::Shape shape) {
    const auto found = std::find_if(graphs_.begin(), graphs_.end(),
                                    [&](const StepGraph& graph) { return graph.shape() == shape; });
    if (found != graphs_.end()) {
      graphs_.splice(graphs_.begin(), graphs_, found);
      return &graphs_.front();
    }
    graphs_.emplace_front(shape, architecture_, config_, weights_, nodes_);
    const std::size_t bytes_before = ggml_gallocr_get_buffer_size(allocator_.get(), 0);
    if (auto allocated = graphs_.front().allocate(allocator_.get()); !allocated) {
      graphs_.clear();
      return fail(allocated.error());
    }
    // A bigger compute buffer has moved; graphs built in the old one point nowhere.
    if (ggml_gallocr_get_buffer_size(allocator_.get(), 0) != bytes_before) {
      graphs_.erase(std::next(graphs_.begin()), graphs_.end());
    }
    if (graphs_.size() > kMaxCachedGraphs) {
      graphs_.pop_back();
    }
    return &graphs_.front();
  }

  ModelConfig config_;
  const Architecture& architecture_;
  WeightStore store_;
  ModelWeights weights_;
  std::unique_ptr<PagedAttention> attention_;
  AttentionNodes nodes_;
  bool ranks_ahead_;
  TraceWriter* trace_;
  ggml_backend_ptr backend_;
  ggml_gallocr_ptr allocator_;
  std::list<StepGraph> graphs_;
  std::vector<std::int32_t> positions_;
  std::vector<std::int32_t> output_rows_;  // of the step
  StepTimes times_;
  std::int64_t archived_pages_read_ = 0;
  std::size_t rows_since_give_back_ = 0;
};

}  // namespace

Expected<std::unique_ptr<ModelRunner>> load_model(const std::string& path,
                                                  const ModelRunnerOptions& options,
                                                  const std::function<bool(double)>& progress) {
  silence_llama_log();
  Expected<GgufFile> file = GgufFile::open(path);
  if (!file) {
    return fail(file.error());
  }
  Expected<ModelConfig> config = read_model_config(*file);
  if (!config) {
    return fail(config.error());
  }
  Expected<std::unique_ptr<PagedAttention>> attention = PagedAttention::create(
      config->kv_cache_spec(options.kv_type), {.num_heads = config->num_heads,
                                               .scale = config->attention_scale,
                                               .logit_softcap = config->attention_logit_softcap,
                                               .max_threads = options.num_threads,
                                               .cpu_level = options.cpu_level,
                                               .sparse = options.sparse});
  if (!attention) {
    return fail(attention.error());
  }
  const Architecture* architecture = find_architecture(config->architecture);
  KAREZ_CHECK(architecture != nullptr, "read_model_config() accepts known architectures only");

  WeightStore store(std::move(*file), options.repack_weights);
  ModelWeights weights;
  if (auto loaded = architecture->load(store, *config, weights); !loaded) {
    return fail(loaded.error());
  }
  if (auto uploaded = store.upload(progress); !uploaded) {
    return fail(uploaded.error());
  }
  return std::make_unique<GgmlModelRunner>(std::move(*config), *architecture, std::move(store),
                                           std::move(weights), std::move(*attention), options);
}

}  // namespace karez
