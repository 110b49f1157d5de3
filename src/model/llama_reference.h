// libllama running the same model file: the oracle of the tests and the peer of the benchmarks.
//
// Hides libllama's types, so that tests, engine and bench need no library header. Each sequence has
// a KV buffer of its own (not the unified one), which is libllama's fast layout for sequences
// without a common prefix.
//
// Sliding-window layers keep window + batch tokens (swa_full off), as libllama's own programs do
// by default and as ours do: the full-size cache costs more time and memory. Therefore
// remove_tokens() of more than batch_tokens from a model with windows leaves its window layers
// incomplete: right for speed, not for values.
// Thread: one caller at a time.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "model/forward_batch.h"

namespace karez {

struct LlamaReferenceOptions {
  int num_threads = 1;
  int context_tokens = 0;  // of each sequence; rounded up to 256 inside
  int num_sequences = 1;
  int batch_tokens = 512;            // logical and physical batch
  int max_output_rows = 0;           // of one decode(), bounds its memory; 0: batch_tokens
  std::string cache_type_k = "f16";  // ggml type names: f32, f16, bf16, q8_0
  std::string cache_type_v = "f16";
  bool flash_attention = false;
  bool repack_weights = true;
};

class LlamaReference {
 public:
  // Fails: kInvalidArgument for an option outside its range, and for a quantised cache_type_v
  // without flash_attention, which libllama cannot compute; kInternal if libllama refuses the file
  // or has no memory, with its own words.
  static Expected<std::unique_ptr<LlamaReference>> load(const std::string& path,
                                                        const LlamaReferenceOptions& options);
  ~LlamaReference();

  struct Row {
    TokenId token;
    int position;
    int sequence;
    bool want_logits;
  };
  // Logits of the rows that want them, f32 [n][vocab_size], in the order of the rows, valid until
  // the next call.
  // Fails: kInvalidArgument for more rows or outputs than the options allow, or a token or sequence
  // that does not exist; kInternal if libllama fails (positions with a gap, context full).
  Expected<std::span<const float>> decode(std::span<const Row> rows);

  // Makes `to` a real copy of all of `from`. The bytes are copied during the next decode().
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
