// The real ModelRunner: a GGUF model on ggml's CPU backend, attention over our block tables.
//
// One ggml graph per step; ours are custom nodes in each layer (store, select if sparse attention
// is on, attend), which share ggml's threads. Graphs are kept and reused for batches of the same
// shape. Weights stay in the mapped file, except those that ggml lays out anew for speed (repacked
// buffers), whose file pages are given back after the copy. Thread: one caller at a time. Owns: the
// mapped file, weight buffers, compute buffers.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "attention/row_selector.h"
#include "attention/sparse_rows.h"
#include "base/cpu_features.h"
#include "base/trace.h"
#include "kv/kv_types.h"
#include "model/model_runner.h"

namespace karez {

struct ModelRunnerOptions {
  int num_threads = 1;  // >= 1
  KvType kv_type = KvType::kBf16;
  bool repack_weights = true;                 // use ggml's fast layouts where it has them
  CpuLevel cpu_level = detected_cpu_level();  // of the attention kernels
  SparseOptions sparse = {};
  SelectionListener* selection_listener = nullptr;  // borrowed, as long as the runner lives
  TraceWriter* trace = nullptr;                     // likewise; null: none
};

// Fails: as GgufFile::open() and read_model_config(); kCorruption for a missing tensor or one of
// the wrong shape, named; kResourceExhausted without memory for the weights; kCancelled if progress
// said so.
// progress, if set, is called with values in [0, 1] while weights are loaded; false ends that.
Expected<std::unique_ptr<ModelRunner>> load_model(const std::string& path,
                                                  const ModelRunnerOptions& options,
                                                  const std::function<bool(double)>& progress = {});

}  // namespace karez
