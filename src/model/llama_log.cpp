#include "model/llama_log.h"

#include <llama.h>

#include <mutex>
#include <string_view>
#include <utility>

namespace karez {
namespace {

// A library in trouble can repeat itself; a message for people needs no more than this.
constexpr std::size_t kMaxErrorBytes = 500;

thread_local std::string pending_errors;
thread_local bool last_was_error = false;

void take_line(ggml_log_level level, const char* text, void* /*user_data*/) {
  // A continuation belongs to the line before it.
  if (level != GGML_LOG_LEVEL_CONT) {
    last_was_error = level == GGML_LOG_LEVEL_ERROR;
  }
  if (last_was_error && pending_errors.size() < kMaxErrorBytes) {
    pending_errors += text;
  }
}

}  // namespace

void silence_llama_log() {
  static std::once_flag once;
  std::call_once(once, [] { llama_log_set(take_line, nullptr); });
}

std::string take_llama_errors() {
  std::string result = std::exchange(pending_errors, {});
  while (!result.empty() && result.back() == '\n') {
    result.pop_back();
  }
  for (char& c : result) {
    if (c == '\n') {
      c = ' ';
    }
  }
  return result;
}

}  // namespace karez
