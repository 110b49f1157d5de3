// ExportMemory: memory of which blocks are exported. Where the machine allows it, consumers on this
// machine map it and read it without a word to this process.
//
// Thread: immutable after create(); the bytes are the caller's to synchronise.
// Owns: the memory, until it and all arenas over it are gone.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/arena.h"
#include "base/status.h"

namespace karez {

struct ExportMemoryOptions {
  bool share = true;  // false: other processes get blocks in messages only
};

class ExportMemory {
 public:
  // bytes > 0. If the memory cannot be shared (a small /dev/shm, say) it is private, and
  // why_private() says the reason. Shared memory is written once here, so that it is there whatever
  // else fills /dev/shm later (a page that finds no room when it is first used ends the process);
  // that takes a second or more for each GB. Pages of private memory become resident when they are
  // first used. Fails: kResourceExhausted if the machine does not have so much.
  static Expected<std::shared_ptr<ExportMemory>> create(std::size_t bytes,
                                                        const ExportMemoryOptions& options = {});
  ~ExportMemory();
  ExportMemory(const ExportMemory&) = delete;
  ExportMemory& operator=(const ExportMemory&) = delete;

  std::span<std::byte> bytes() const;
  // Over all of it, for the tier that keeps blocks there; keeps the memory alive.
  static Arena arena(std::shared_ptr<ExportMemory> memory);
  bool is_shared() const;
  const std::string& why_private() const;  // empty if it is shared

  class Impl;
  Impl& impl() { return *impl_; }  // for KvExporter

 private:
  explicit ExportMemory(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace karez
