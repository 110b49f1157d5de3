// Where the tests' real models are. For test programs, which are told by KAREZ_MODELS_DIR.
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>

namespace karez::test {

inline constexpr const char* kSmolLm2 = "SmolLM2-135M-Instruct.Q4_1.gguf";
inline constexpr const char* kGemma3 = "gemma-3-270m-q4_k_m.gguf";

// Throws, naming the command that fetches the file, if it is missing.
inline std::string model_path(const std::string& name) {
  std::string path = std::string(KAREZ_MODELS_DIR) + "/" + name;
  if (!std::filesystem::exists(path)) {
    throw std::runtime_error(path + " is missing: run scripts/setup.sh --tests");
  }
  return path;
}

}  // namespace karez::test
