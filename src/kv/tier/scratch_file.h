// A file without a name in a directory: gone when it is closed, whatever happens to the process.
//
// Thread: one. Owns: the file descriptor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace karez {

class ScratchFile {
 public:
  // Opens it for O_DIRECT if the file system allows, and makes it size_bytes long without taking
  // room for them. Never follows a link, and never opens a file that was there.
  // Fails: kNotFound, kInvalidArgument or kIoError, naming the directory and the reason.
  static Expected<ScratchFile> create(const std::string& directory, std::int64_t size_bytes);

  ScratchFile(ScratchFile&& other) noexcept;
  ScratchFile& operator=(ScratchFile&& other) noexcept;
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  ~ScratchFile();

  int descriptor() const { return descriptor_; }
  bool is_direct() const { return is_direct_; }
  // What addresses, and offsets and lengths, must be multiples of. 1 if not direct.
  std::size_t memory_alignment() const { return memory_alignment_; }
  std::size_t offset_alignment() const { return offset_alignment_; }

 private:
  explicit ScratchFile(int descriptor) : descriptor_(descriptor) {}
  bool try_direct();

  int descriptor_ = -1;
  bool is_direct_ = false;
  std::size_t memory_alignment_ = 1;
  std::size_t offset_alignment_ = 1;
};

}  // namespace karez
