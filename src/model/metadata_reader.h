// Reads one architecture's keys ("llama.block_count") with ranges and defaults.
//
// Every failure names the file, the key, the value seen and the values allowed. A reader keeps its
// first failure and then answers with defaults, so that a list of keys reads as a list; the caller
// asks status() at the end.
// Thread: one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace karez {

class GgufFile;

class MetadataReader {
 public:
  // Keys are prefixed with "<architecture>.". Both must outlive the reader.
  MetadataReader(const GgufFile& file, std::string_view architecture)
      : file_(file), architecture_(architecture) {}

  bool has(std::string_view key) const;

  // A value in [min, max]. Without the key: `fallback`, or a failure if there is none.
  int integer(std::string_view key, int min, int max, std::optional<int> fallback = std::nullopt);
  // A finite value in [min, max].
  float number(std::string_view key, float min, float max,
               std::optional<float> fallback = std::nullopt);
  // A finite value in (0, max].
  float positive_number(std::string_view key, float max,
                        std::optional<float> fallback = std::nullopt);
  // A scalar, or an array of num_layers values; kUnimplemented if the layers differ.
  int same_for_all_layers(std::string_view key, int num_layers, int min, int max,
                          std::optional<int> fallback = std::nullopt);
  bool boolean(std::string_view key, bool fallback);
  std::string text(std::string_view key, std::string_view fallback);

  // Records a failure of the caller's own: "<file>: key "<key>" <what>".
  void refuse(StatusCode code, std::string_view key, std::string_view what);

  Expected<void> status() const;

 private:
  std::string full_key(std::string_view key) const;
  void keep(Status status);

  const GgufFile& file_;
  std::string_view architecture_;
  std::optional<Status> failure_;
};

}  // namespace karez
