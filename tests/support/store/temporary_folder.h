// A folder that does not outlive the test. A killed test leaves it in the system's temporary
// folder.
//
// Thread: one. Owns: the folder and all in it.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/check.h"

namespace karez::test {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    // In memory where there is such a file system: syncing a disk takes most of a test's time.
    const std::filesystem::path memory = "/dev/shm";
    std::error_code ignored;
    const bool has_memory = std::filesystem::is_directory(memory, ignored);
    path_ = ((has_memory ? memory : std::filesystem::temp_directory_path()) / "karez_store_XXXXXX")
                .string();
    KAREZ_CHECK(mkdtemp(path_.data()) != nullptr, "the temporary folder can be written to");
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace karez::test
