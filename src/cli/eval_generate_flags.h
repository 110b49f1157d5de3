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
  std::vector<int> generated_tokens;      // none or one
  std::vector<double> keeps = {0.75, 0.5, 0.2};
  std::vector<std::string> scores;  // empty: the default one; "all": all; as with the next two
  std::vector<std::string> chunks;  // not of scores that know no neighbours
  std::vector<std::string> archives;
  int window_tokens = CompressionOptions{}.window_tokens;
  int recent_tokens = CompressionOptions{}.recent_tokens;
  std::vector<const CLI::Option*> others;  // that need --generate
};

void add_eval_generate_flags(CLI::App& command, EvalGenerateFlags& flags);

bool is_given(const EvalGenerateFlags& flags);

// The cross product; of the scores recent and random there is one for each keep and archive, since
// these look at no neighbours. None without --generate.
// Fails: kInvalidArgument naming the flag, its value and what is allowed; for a flag that was given
// without --generate.
Expected<std::vector<CompressionOptions>> compressions_of(const EvalGenerateFlags& flags);

}  // namespace karez
