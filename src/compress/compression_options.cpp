#include "compress/compression_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>

namespace karez {
namespace {

constexpr std::array kScores = {CompressScore::kBidirectional, CompressScore::kCausal,
                                CompressScore::kLastQueries, CompressScore::kRecent,
                                CompressScore::kRandom};
constexpr std::array kArchives = {CompressArchive::kR4, CompressArchive::kOff};

template <class Value, std::size_t N>
Expected<Value> parse(const std::array<Value, N>& values, std::string_view name,
                      std::string_view what) {
  std::string names;
  for (const Value value : values) {
    if (to_string(value) == name) {
      return value;
    }
    names += fmt::format("{}{}", names.empty() ? "" : ", ", to_string(value));
  }
  return fail(StatusCode::kInvalidArgument,
              fmt::format("{} is \"{}\", allowed are {}", what, name, names));
}

Expected<void> in_range(std::string_view field, double value, bool holds, std::string_view what) {
  if (holds) {
    return {};
  }
  return fail(StatusCode::kInvalidArgument,
              fmt::format("{} is {}, allowed are {}", field, value, what));
}

}  // namespace

std::string_view to_string(CompressScore score) {
  switch (score) {
    case CompressScore::kBidirectional:
      return "bidirectional";
    case CompressScore::kCausal:
      return "causal";
    case CompressScore::kLastQueries:
      return "last-queries";
    case CompressScore::kRecent:
      return "recent";
    case CompressScore::kRandom:
      break;
  }
  return "random";
}

std::string_view to_string(CompressChunk chunk) {
  switch (chunk) {
    case CompressChunk::kToken2Chunk:
      return "token2chunk";
    case CompressChunk::kNone:
      return "none";
    case CompressChunk::kFixed:
      break;
  }
  return "fixed";
}

std::string_view to_string(CompressArchive archive) {
  return archive == CompressArchive::kR4 ? "r4" : "off";
}

Expected<CompressScore> parse_compress_score(std::string_view name) {
  return parse(kScores, name, "compress-score");
}

Expected<CompressArchive> parse_compress_archive(std::string_view name) {
  return parse(kArchives, name, "compress-archive");
}

Expected<void> CompressionOptions::set_chunk(std::string_view name) {
  constexpr std::string_view kFixedPrefix = "fixed=";
  if (name == to_string(CompressChunk::kToken2Chunk)) {
    chunk = CompressChunk::kToken2Chunk;
    return {};
  }
  if (name == to_string(CompressChunk::kNone)) {
    chunk = CompressChunk::kNone;
    return {};
  }
  if (name.starts_with(kFixedPrefix)) {
    const std::string_view number = name.substr(kFixedPrefix.size());
    int tokens = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), tokens);
    if (error == std::errc() && end == number.data() + number.size() && tokens > 0) {
      chunk = CompressChunk::kFixed;
      fixed_chunk_tokens = tokens;
      return {};
    }
  }
  return fail(StatusCode::kInvalidArgument,
              fmt::format("compress-chunk is \"{}\", allowed are token2chunk, none, fixed=N with "
                          "N from 1",
                          name));
}

std::string CompressionOptions::chunk_name() const {
  return chunk == CompressChunk::kFixed ? fmt::format("fixed={}", fixed_chunk_tokens)
                                        : std::string(to_string(chunk));
}

int CompressionOptions::kept_tokens() const {
  const int blocks = window_tokens / kBlockSize;
  const int kept = static_cast<int>(std::lround(keep * blocks));
  return std::clamp(kept, 1, blocks - 1) * kBlockSize;
}

Expected<void> CompressionOptions::validate() const {
  constexpr int kMaxTokens = 1 << 16;  // their queries are kept
  const Expected<void> checks[] = {
      in_range("compress-keep", keep, keep > 0 && keep < 1, "numbers above 0 and below 1"),
      in_range("compress-window", window_tokens,
               window_tokens >= 2 * kBlockSize && window_tokens <= kMaxTokens &&
                   window_tokens % kBlockSize == 0,
               "multiples of 16 from 32 to 65536"),
      in_range("compress-recent", recent_tokens, recent_tokens >= 0 && recent_tokens <= kMaxTokens,
               "0 to 65536"),
      in_range("compress-per-step", sequences_per_step, sequences_per_step >= 1, "1 and more"),
  };
  for (const Expected<void>& check : checks) {
    if (!check) {
      return fail(check.error());
    }
  }
  if (chunk == CompressChunk::kFixed &&
      (fixed_chunk_tokens < 1 || fixed_chunk_tokens > kept_tokens())) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("compress-chunk is fixed={}, allowed are chunks of 1 to {} tokens, as "
                            "many as are kept of a window",
                            fixed_chunk_tokens, kept_tokens()));
  }
  return {};
}

CompressionSchedule schedule_of(const CompressionOptions& options, int prompt_tokens,
                                int sink_tokens, int pages_per_block) {
  const int begin = std::max(options.compresses_prompt ? 0 : prompt_tokens, sink_tokens);
  return {(begin + kBlockSize - 1) / kBlockSize * kBlockSize, options.window_tokens,
          options.kept_tokens(), options.recent_tokens,
          options.archive == CompressArchive::kR4 ? pages_per_block : 0};
}

}  // namespace karez
