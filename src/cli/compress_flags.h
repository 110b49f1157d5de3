// The flags of compression, shared by the commands that generate text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "compress/compression_options.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace karez {

inline constexpr const char* kCompressionGroup = "Compression";  // in help texts
inline constexpr const char* kNothingToCompress =
    "--compress: every layer of this model has a sliding window, there is nothing to compress";

// As typed.
struct CompressFlags {
  bool compress = false;
  double keep = CompressionOptions{}.keep;
  std::int64_t window_tokens = CompressionOptions{}.window_tokens;
  std::int64_t recent_tokens = CompressionOptions{}.recent_tokens;
  std::int64_t sequences_per_step = CompressionOptions{}.sequences_per_step;
  bool prompt = false;
  std::string score;    // empty: not given
  std::string chunk;    // likewise
  std::string archive;  // likewise

  std::vector<const CLI::Option*> others;  // than --compress
};

// compress_help: what --compress does for the command.
void add_compress_flags(CLI::App& command, CompressFlags& flags, const char* compress_help);

// Fails: kInvalidArgument naming the flag, its value and what is allowed.
Expected<CompressionOptions> check_compress_flags(const CompressFlags& flags);

// For a command in which nothing else can ask for compression.
// Fails: kInvalidArgument naming a flag that was given without --compress, whatever its value.
Expected<void> check_compression_is_used(const CompressFlags& flags);

}  // namespace karez
