// Keeps libllama and ggml from writing to stderr, and keeps their last error for our messages.
//
// Thread: any; the error text is per thread.
#pragma once

#include <string>

namespace karez {

// Takes over the log of libllama and ggml. Idempotent; called before the first use of either.
void silence_llama_log();

// What they reported as errors on this thread since the last call, one line, without a line break
// at its end. Empty if nothing.
std::string take_llama_errors();

}  // namespace karez
