// The name of a file that does not outlive the test. A killed test leaves it in the system's
// temporary folder.
//
// Thread: one.
// Owns: the file, if something has written it.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>

namespace karez::test {

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& name)
      : path_((std::filesystem::temp_directory_path() /
               ("karez_" + std::to_string(getpid()) + "_" + name))
                  .string()) {}
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace karez::test
