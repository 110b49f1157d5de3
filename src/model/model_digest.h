// A digest of a model file's content, for what outlives the process and must not be used with
// another model.
//
// Covers: all metadata (vocabulary, RoPE, windows), all tensors' names, types and shapes, the
// file's size, and of each tensor's data all if it is short, else 16 pieces of 4 KiB evenly spread,
// the first and the last included. So it costs some milliseconds whatever the model's size. It does
// not notice a change of a few weights between those pieces. Thread: pure.
#pragma once

#include "kv/store/sha256.h"
#include "model/gguf_file.h"

namespace karez {

Sha256Digest model_digest(const GgufFile& file);

}  // namespace karez
