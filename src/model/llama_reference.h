// libllama running the same model file: the oracle of the tests and the peer of the benchmarks.
//
// Hides libllama's types, so that tests, engine and bench need no library header.
// Thread: one caller at a time.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/forward_batch.h"

namespace karez {

struct LlamaReferenceOptions {
  int num_threads = 1;
  int context_tokens = 0;  // of each sequence
  int num_sequences = 1;
  int batch_tokens = 512;            // logical and physical batch
  std::string cache_type_k = "f16";  // ggml type names: f32, f16, bf16, q8_0
  std::string cache_type_v = "f16";
  bool flash_attention = false;
  bool repack_weights = true;
};

class LlamaReference {
 public:
  static Expected<std::unique_ptr<LlamaReference>> load(const std::string& path,
                                                        const LlamaReferenceOptions& options);
  ~LlamaReference();

  struct Row {
    TokenId token;
    int position;
    int sequence;
    bool want_logits;
  };
  // Logits of the rows that want them, f32 [n][vocab_size], valid until the next call.
  // Requires: rows.size() <= batch_tokens.
  Expected<std::span<const float>> decode(std::span<const Row> rows);

  void copy_sequence(int from, int to);
  void remove_tokens(int sequence, int from_position);  // [from_position, end)
  void clear();
  int vocab_size() const;

 private:
  struct Impl;
  explicit LlamaReference(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace karez
