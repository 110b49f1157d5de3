// The flags of `karez eval --generate`: ways to compress, as lists whose cross product is measured.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "compress/compression_options.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace karez {

// As typed.
struct EvalGenerateFlags {
  const CLI::Option* generate = nullptr;  // whether it was given
  int generated_tokens = 0;               // 0, as without a number: all but the first few
  std::vector<double> keeps = {0.75, 0.5, 0.2};
  std::vector<std::string> scores;  // empty: the default one; "all": all; as with the next two
  std::vector<std::string> chunks;  // not of the score recent
  std::vector<std::string> archives;
  int window_tokens = CompressionOptions{}.window_tokens;
  int recent_tokens = CompressionOptions{}.recent_tokens;
  std::vector<const CLI::Option*> others;  // that need --generate
};

void add_eval_generate_flags(CLI::App& command, EvalGenerateFlags& flags);

bool is_given(const EvalGenerateFlags& flags);

// The cross product; of the score recent there is one for each keep and archive: runs of the most
// recent pairs are the most recent pairs. None without --generate.
// Fails: kInvalidArgument naming the flag, its value and what is allowed; for a flag that was given
// without --generate.
Expected<std::vector<CompressionOptions>> compressions_of(const EvalGenerateFlags& flags);

}  // namespace karez
