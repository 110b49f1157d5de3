// How the aged windows of a generating sequence are compressed (Kara, arXiv 2607.01237; design:
// docs/compression.md).
//
// Thread: values and pure functions.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "kv/compression_schedule.h"

namespace karez {

// What decides which pairs of a window are kept.
enum class CompressScore {
  kBidirectional,  // the window's and the later queries on all its keys, without a causal mask
  kCausal,         // the same, each query on the keys before it
  kLastQueries,    // the latest queries alone (SnapKV, arXiv 2404.14469)
  kRecent,         // the latest pairs
  kRandom,
};
enum class CompressChunk {
  kToken2Chunk,  // half by score, half grown from these to the best neighbours
  kNone,         // by score
  kFixed,        // aligned runs of fixed_chunk_tokens
};
enum class CompressArchive {
  kR4,   // pairs that are not kept stay, rotated, in 4 bits
  kOff,  // they are dropped
};

std::string_view to_string(CompressScore score);
std::string_view to_string(CompressChunk chunk);
std::string_view to_string(CompressArchive archive);
// Fail: kInvalidArgument with the list of names.
Expected<CompressScore> parse_compress_score(std::string_view name);
Expected<CompressArchive> parse_compress_archive(std::string_view name);

struct CompressionOptions {
  double keep = 0.5;           // of a window's pairs, for each layer and KV head; in (0, 1)
  int window_tokens = 512;     // a multiple of kBlockSize, at least two
  int recent_tokens = 512;     // behind a window before it is compressed
  int sequences_per_step = 1;  // that are worked on in one step
  bool compresses_prompt = false;
  CompressScore score = CompressScore::kBidirectional;
  CompressChunk chunk = CompressChunk::kFixed;  // the best that was measured (docs/quality.md)
  int fixed_chunk_tokens = 16;                  // kFixed
  CompressArchive archive = CompressArchive::kR4;

  // Whole blocks, at least one, fewer than the window has.
  int kept_tokens() const;
  // Fails: kInvalidArgument naming the field, its value and what is allowed.
  Expected<void> validate() const;
  // As set_chunk() takes it.
  std::string chunk_name() const;
  // Also sets chunk's length: "token2chunk", "none" or "fixed=N". Fails: kInvalidArgument.
  Expected<void> set_chunk(std::string_view name);
};

// sink_tokens are never compressed, prompt_tokens unless compresses_prompt. pages_per_block: of
// archived pages, with an archive.
CompressionSchedule schedule_of(const CompressionOptions& options, int prompt_tokens,
                                int sink_tokens, int pages_per_block);

}  // namespace karez
