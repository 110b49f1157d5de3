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

// That write_text_file() will be able to, before the work that it is the result of. Makes the file
// if there is none, and leaves one that is there as it is. Fails: kIoError.
Expected<void> check_writable(const std::string& path);
// Writes text as the whole content. Fails: kIoError.
Expected<void> write_text_file(const std::string& path, const std::string& text);

}  // namespace karez
