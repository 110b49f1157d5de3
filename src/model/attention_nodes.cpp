#include "model/attention_nodes.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "kv/kv_cache_manager.h"

namespace karez {

namespace {

RowsView rows_of(const ggml_tensor* tensor) {
  return {static_cast<const float*>(tensor->data), tensor->nb[2] / sizeof(float)};
}

}  // namespace

AttentionNodes::AttentionNodes(PagedAttention& attention, int num_layers, int max_threads,
                               bool has_select)
    : attention_(attention),
      has_select_(has_select),
      layers_(static_cast<std::size_t>(num_layers)),
      exits_(static_cast<std::size_t>(max_threads)) {
  for (int i = 0; i < num_layers; ++i) {
    layers_[static_cast<std::size_t>(i)].owner = this;
    layers_[static_cast<std::size_t>(i)].index = i;
  }
  for (ExitTimes& exits : exits_) {
    exits.by_layer.resize(static_cast<std::size_t>(num_layers));
  }
}

ggml_tensor* AttentionNodes::store(ggml_context* context, int layer, ggml_tensor* keys,
                                   ggml_tensor* values) {
  std::array<ggml_tensor*, 2> inputs = {keys, values};
  return ggml_custom_4d(context, GGML_TYPE_F32, 1, 1, 1, 1, inputs.data(), inputs.size(), run_store,
                        GGML_N_TASKS_MAX, &layers_[static_cast<std::size_t>(layer)]);
}

ggml_tensor* AttentionNodes::select(ggml_context* context, int layer, ggml_tensor* queries,
                                    ggml_tensor* stored) {
  KAREZ_CHECK(has_select_, "these graphs have no select nodes");
  std::array<ggml_tensor*, 2> inputs = {queries, stored};
  return ggml_custom_4d(context, GGML_TYPE_F32, 1, 1, 1, 1, inputs.data(), inputs.size(),
                        run_select, GGML_N_TASKS_MAX, &layers_[static_cast<std::size_t>(layer)]);
}

ggml_tensor* AttentionNodes::rank(ggml_context* context, int layer, ggml_tensor* queries,
                                  ggml_tensor* after) {
  std::array<ggml_tensor*, 2> inputs = {queries, after};
  return ggml_custom_4d(context, GGML_TYPE_F32, 1, 1, 1, 1, inputs.data(), inputs.size(), run_rank,
                        GGML_N_TASKS_MAX, &layers_[static_cast<std::size_t>(layer)]);
}

ggml_tensor* AttentionNodes::attend(ggml_context* context, int layer, ggml_tensor* queries,
                                    ggml_tensor* ready) {
  std::array<ggml_tensor*, 2> inputs = {queries, ready};
  return ggml_custom_4d(context, GGML_TYPE_F32, queries->ne[0] * queries->ne[1], queries->ne[2], 1,
                        1, inputs.data(), inputs.size(), run_attend, GGML_N_TASKS_MAX,
                        &layers_[static_cast<std::size_t>(layer)]);
}

void AttentionNodes::begin_step(std::span<const SequenceRows> sequences, const KVCacheManager& kv,
                                const KeyIndex* index) {
  views_.clear();
  index_views_.clear();
  for (Layer& layer : layers_) {
    views_.push_back(kv.layer(layer.index));
    index_views_.push_back(index == nullptr ? KeyIndexView() : index->view(layer.index));
    layer.ran = false;
    layer.attended = false;
    layer.ranked = false;
  }
  for (ExitTimes& exits : exits_) {
    std::fill(exits.by_layer.begin(), exits.by_layer.end(), Clock::time_point());
  }
  attention_.plan(sequences);
}

AttentionTimes AttentionNodes::end_step() {
  using Seconds = std::chrono::duration<double>;
  AttentionTimes times;
  for (const Layer& layer : layers_) {
    const Clock::time_point end = end_of(layer);
    if (layer.ran) {
      times.total += Seconds(end - layer.begin).count();
    }
    if (layer.attended) {
      times.attend += Seconds(end - layer.attend_begin).count();
      if (has_select_) {
        const Clock::time_point select_end = layer.ranked ? layer.rank_begin : layer.attend_begin;
        times.select += Seconds(select_end - layer.select_begin).count();
        times.rank += Seconds(layer.attend_begin - select_end).count();
      }
    }
  }
  return times;
}

AttentionNodes::Clock::time_point AttentionNodes::end_of(const Layer& layer) const {
  Clock::time_point end;
  for (const ExitTimes& exits : exits_) {
    end = std::max(end, exits.by_layer[static_cast<std::size_t>(layer.index)]);
  }
  return end;
}

void AttentionNodes::trace_step(TraceWriter& trace, Clock::time_point begin,
                                Clock::time_point end) const {
  const auto add = [&](const char* name, int layer, Clock::time_point from, Clock::time_point to) {
    trace.add({.name = name, .layer = layer, .begin = from, .end = to});
  };
  Clock::time_point dense_begin = begin;
  for (const Layer& layer : layers_) {
    if (!layer.ran) {
      continue;
    }
    const Clock::time_point layer_end = end_of(layer);
    add("dense", -1, dense_begin, layer.begin);
    add("attention", layer.index, layer.begin, layer_end);
    if (layer.attended) {
      const Clock::time_point stored = has_select_ ? layer.select_begin : layer.attend_begin;
      add("store", layer.index, layer.begin, stored);
      if (has_select_) {
        add("select", layer.index, stored, layer.attend_begin);
      }
      add("attend", layer.index, layer.attend_begin, layer_end);
    }
    dense_begin = layer_end;
  }
  add("dense", -1, dense_begin, end);
}

void AttentionNodes::run_store(ggml_tensor* node, int thread, int num_threads, void* userdata) {
  Layer& layer = *static_cast<Layer*>(userdata);
  AttentionNodes& self = *layer.owner;
  if (thread == 0) {
    layer.begin = Clock::now();
    layer.ran = true;
  }
  const auto index = static_cast<std::size_t>(layer.index);
  self.attention_.store(layer.index, self.views_[index], self.index_views_[index],
                        rows_of(node->src[0]), rows_of(node->src[1]), thread, num_threads);
  // The last layer of a batch without outputs has no attend().
  self.exits_[static_cast<std::size_t>(thread)].by_layer[index] = Clock::now();
}

void AttentionNodes::run_select(ggml_tensor* node, int thread, int num_threads, void* userdata) {
  Layer& layer = *static_cast<Layer*>(userdata);
  AttentionNodes& self = *layer.owner;
  if (thread == 0) {
    layer.select_begin = Clock::now();
  }
  const auto index = static_cast<std::size_t>(layer.index);
  self.attention_.select(layer.index, self.index_views_[index], rows_of(node->src[0]), thread,
                         num_threads);
}

// It stands in the layer before the one whose queries it has.
void AttentionNodes::run_rank(ggml_tensor* node, int thread, int num_threads, void* userdata) {
  Layer& layer = *static_cast<Layer*>(userdata);
  AttentionNodes& self = *layer.owner;
  const auto index = static_cast<std::size_t>(layer.index);
  if (thread == 0) {
    Layer& before = self.layers_[index - 1];
    before.rank_begin = Clock::now();
    before.ranked = true;
  }
  self.attention_.rank(layer.index, self.views_[index], self.index_views_[index],
                       rows_of(node->src[0]), thread, num_threads);
}

void AttentionNodes::run_attend(ggml_tensor* node, int thread, int num_threads, void* userdata) {
  Layer& layer = *static_cast<Layer*>(userdata);
  AttentionNodes& self = *layer.owner;
  if (thread == 0) {
    layer.attend_begin = Clock::now();
    layer.attended = true;
  }
  const auto index = static_cast<std::size_t>(layer.index);
  self.attention_.attend(layer.index, self.views_[index], rows_of(node->src[0]),
                         static_cast<float*>(node->data), thread, num_threads);
  self.exits_[static_cast<std::size_t>(thread)].by_layer[index] = Clock::now();
}

}  // namespace karez
