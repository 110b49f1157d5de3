// SHA-256, for names that outlive a process and are shared: nobody can make two contents with one
// name, and a name says nothing about its content.
//
// Thread: one object, one thread.
// Owns: the state of the computation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace karez {

using Sha256Digest = std::array<std::byte, 32>;

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void add(std::span<const std::byte> bytes);
  void add_number(std::uint64_t number);  // 8 bytes, little-endian
  // With its length before it, so that no two lists of texts agree.
  void add_text(std::string_view text);
  // Ends it. Requires: was not called before.
  Sha256Digest finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace karez
