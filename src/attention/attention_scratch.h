// Memory that attention computes in: aligned buffers, one thread's arrays cut out of them.
//
// Thread: each ThreadScratch is used by one thread.
// Owns: AlignedBytes owns its bytes; ThreadScratch points into bytes of its owner.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "attention/kernel_table.h"
#include "attention/recall.h"

namespace karez {

inline constexpr std::size_t kCacheLineBytes = 64;

// Bytes at a cache line's border, not initialised.
class AlignedBytes {
 public:
  void resize(std::size_t bytes) {
    if (bytes <= size_) {
      return;
    }
    storage_ = std::make_unique_for_overwrite<std::byte[]>(bytes + kCacheLineBytes);
    size_ = bytes;
    void* p = storage_.get();
    std::size_t space = bytes + kCacheLineBytes;
    data_ = static_cast<std::byte*>(std::align(kCacheLineBytes, bytes, p, space));
  }
  std::byte* data() const { return data_; }

 private:
  std::unique_ptr<std::byte[]> storage_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Cuts consecutive arrays out of one buffer, each at a cache line's border. Without a buffer it
// counts only: the arrays are null.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <class T>
  T* take(std::size_t count) {
    T* p = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += (count * sizeof(T) + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes;
    return p;
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

inline Partial take_partial(Carver& carver, int head_dim) {
  Partial p{};
  p.out = carver.take<float>(static_cast<std::size_t>(kTileVectors) *
                             static_cast<std::size_t>(head_dim));
  p.max = carver.take<float>(kTileVectors);
  p.sum = carver.take<float>(kTileVectors);
  p.seen = carver.take<float>(kTileVectors);
  return p;
}

// What one thread works in.
struct ThreadScratch {
  QueryTile tile{};
  Partial state{};
  Partial part{};
  Partial archive_state{};   // of archived pages, rotated
  float* rotated = nullptr;  // queries for them, [kTileVectors][head_dim]
  std::vector<RecallSample> recall;

  std::size_t carve(std::byte* base, int head_dim) {
    Carver carver(base);
    const auto dim = static_cast<std::size_t>(head_dim);
    constexpr std::size_t kScores = std::size_t{kTileVectors} * std::size_t{kScoreStride};
    constexpr std::size_t kDimStep = 32;
    const std::size_t padded_dim = (dim + kDimStep - 1) / kDimStep * kDimStep;
    tile.queries = carver.take<std::byte>(std::size_t{kTileVectors} * padded_dim * sizeof(float));
    tile.scores = carver.take<float>(kScores);
    tile.weights = carver.take<std::byte>(kScores * sizeof(float));
    // Key tiles of a head dim that is not a multiple of 32 read on behind the last block.
    constexpr std::size_t kTileBytes = 1024;
    tile.expanded =
        carver.take<std::byte>(std::size_t{kChunkBlocks * kLanes} * dim * 2 + kTileBytes);
    rotated = carver.take<float>(std::size_t{kTileVectors} * dim);
    state = take_partial(carver, head_dim);
    archive_state = take_partial(carver, head_dim);
    part = take_partial(carver, head_dim);
    return carver.used();
  }
};

}  // namespace karez
