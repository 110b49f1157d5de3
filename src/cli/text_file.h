// Small text files that the user names: prompts and grammars.
#pragma once

#include <cstddef>
#include <string>

#include "base/status.h"

namespace karez {

// The whole file (pipes and devices too), read no further than max_bytes.
// Fails: kNotFound; kIoError if it cannot be read or is a directory; kInvalidArgument if it has
// more than max_bytes or is not UTF-8.
Expected<std::string> read_text_file(const std::string& path, std::size_t max_bytes);

// Writes text as the whole content. Fails: kIoError.
Expected<void> write_text_file(const std::string& path, const std::string& text);

}  // namespace karez
