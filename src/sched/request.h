// A validated, immutable ask for text: what the server (or a test) hands to the engine.
//
// Typed: no JSON, no HTTP. Does not hold state of its progress (sched/sequence.h does).
// Thread: a value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/token.h"
#include "kv/kv_types.h"
#include "sampling/sampling_params.h"

namespace karez {

using RequestId = std::uint64_t;

// What a request says about the compression of its KV; the rest is as the engine was started.
struct KvCompressionRequest {
  // The queries of a window are kept until it is compressed.
  static constexpr int kWindowUnit = kBlockSize;
  static constexpr int kLeastWindow = 2 * kWindowUnit;
  static constexpr int kMostWindow = 4096;

  std::optional<bool> enabled;
  std::optional<double> keep;        // of a window's pairs; in (0, 1)
  std::optional<int> window_tokens;  // a multiple of kWindowUnit from kLeastWindow to kMostWindow
};

// How the KV of a request goes from the node that prefills it (a producer) to the one that decodes.
struct KvTransfer {
  enum class Role {
    kProduce,  // prefill here, and keep the KV for a consumer
    kConsume,  // a producer has prefilled: its KV is read from there
  };
  Role role = Role::kProduce;
  // Where the KV is. A request that produces leaves them empty: the answer says them.
  std::string remote_host;
  int remote_port = 0;            // 1 to 65535
  std::string remote_engine_id;   // of the process that has it; opaque, at most 128 bytes
  std::string remote_request_id;  // of the KV in that process: 32 hexadecimal digits
  bool operator==(const KvTransfer&) const = default;
};

struct Request {
  RequestId id = 0;
  std::vector<TokenId> prompt;  // not empty
  SamplingParams sampling;      // with stop strings and grammar
  int num_choices = 1;          // answers to the same prompt, which share its KV
  int max_tokens = -1;          // generated per choice; -1: until the context is full
  int min_tokens = 0;           // no end before so many generated tokens
  bool ignore_eos = false;
  std::vector<TokenId> stop_token_ids;
  std::vector<std::pair<TokenId, float>> logit_bias;
  int num_logprobs = -1;  // alternatives reported with each token; 0: the chosen one only; -1: none
  int priority = 0;       // lower runs first (policy `priority`)
  bool use_prefix_cache = true;
  std::string cache_salt;  // requests share cached prompts only if their salts are equal
  KvCompressionRequest kv_compression;
  std::optional<KvTransfer> kv_transfer;  // none: prefilled and decoded here
};

enum class FinishReason {
  kStop,       // an end token or a stop string
  kLength,     // max_tokens, or the context or the fast tier is full
  kCancelled,  // the client went away or asked
  kError,
};

}  // namespace karez
