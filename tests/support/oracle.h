// Two engines that are fed the same tokens, and how far their logits are apart.
//
// TeacherForced is one engine with numbered sequences; paged_model() is ours over a KV store of its
// own, llama_model() is libllama. Failures throw std::runtime_error: a test cannot go on.
// Thread: one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "kv/kv_types.h"
#include "model/forward_batch.h"

namespace karez::test {

// Consecutive tokens of one sequence in one forward.
struct Chunk {
  int sequence = 0;
  std::vector<TokenId> tokens;
  bool want_logits = false;  // of every row; false: of none
};

class TeacherForced {
 public:
  virtual ~TeacherForced() = default;
  // Appends each chunk to its sequence. Logits of the rows that want them, in the order of the
  // chunks, f32 [rows][vocab_size], valid until the next call.
  virtual std::span<const float> forward(std::span<const Chunk> chunks) = 0;
  // A sequence that has no tokens yet becomes a continuation of another.
  virtual void fork(int from, int to) = 0;
  virtual int vocab_size() const = 0;
};

struct PagedModelOptions {
  KvType kv_type = KvType::kF32;
  int num_threads = 2;
  int max_tokens = 4096;  // of each sequence
  int num_sequences = 1;
  bool repack_weights = true;
  CpuLevel cpu_level = detected_cpu_level();
};
std::unique_ptr<TeacherForced> paged_model(const std::string& path,
                                           const PagedModelOptions& options);

struct LlamaModelOptions {
  std::string cache_type_k = "f32";
  std::string cache_type_v = "f32";
  int num_threads = 2;
  int max_tokens = 4096;
  int num_sequences = 1;
  bool repack_weights = true;
};
std::unique_ptr<TeacherForced> llama_model(const std::string& path,
                                           const LlamaModelOptions& options);

// Rows of a forward that may want logits: bounds the memory of a large vocabulary.
inline constexpr int kMaxLogitRows = 64;
inline constexpr int kMaxForwardRows = 512;

TokenId argmax(std::span<const float> logits);
// Distance of the two largest logits.
float top_margin(std::span<const float> logits);

// Differences of rows of logits, summed up.
class Agreement {
 public:
  void add(std::span<const float> ours, std::span<const float> reference, int vocab_size);

  std::int64_t rows() const { return rows_; }
  double top1_share() const;  // rows with the same largest logit
  double max_difference() const { return max_difference_; }
  double mean_difference() const;  // absolute, over all logits
  double mean_divergence() const;  // Kullback-Leibler of the reference from ours, nats a token
  // Of the rows whose largest logit differs, the largest margin of the reference's two best.
  float max_disagreeing_margin() const { return max_disagreeing_margin_; }
  std::string to_string() const;

 private:
  void add_row(std::span<const float> ours, std::span<const float> reference);

  std::int64_t rows_ = 0;
  std::int64_t same_top_ = 0;
  std::int64_t values_ = 0;
  double max_difference_ = 0;
  double sum_difference_ = 0;
  double sum_divergence_ = 0;
  float max_disagreeing_margin_ = 0;
};

// One forward after the other.
using Schedule = std::vector<std::vector<Chunk>>;

// A prompt in forwards of step_tokens (logits of its last row alone), then num_single rows one by
// one, then the rest in slices of kMaxLogitRows. text has prompt + continuation tokens.
Schedule single_sequence_schedule(std::span<const TokenId> text, int prompt_tokens, int num_single,
                                  int step_tokens = kMaxForwardRows);

// Sequence i has the first prompt_tokens[i] tokens of texts[i] as its prompt, then continuation
// tokens with logits. Every forward mixes prompt chunks of uneven sizes with single rows and with
// several rows of one sequence.
Schedule mixed_schedule(std::span<const std::vector<TokenId>> texts,
                        std::span<const int> prompt_tokens);

Agreement compare(TeacherForced& ours, TeacherForced& reference, const Schedule& schedule);

// The first num_tokens tokens of licence texts that every Debian has, in the model's vocabulary.
std::vector<TokenId> real_text(const std::string& path, int num_tokens);

}  // namespace karez::test
