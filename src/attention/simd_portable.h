// Sixteen floats in plain C++: GCC and clang vector extensions of 16 bytes, which every processor
// has. The other simd_*.h have the same members; chunk_kernels.h says what they are for.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/kernel_common.h"
#include "attention/kernel_table.h"

namespace karez {
namespace {

struct PortableSimd {
  using Quad = float __attribute__((vector_size(16)));
  using IntQuad = std::int32_t __attribute__((vector_size(16)));
  struct F {
    Quad q[4];
  };
  static constexpr int kRows = 3;       // rows of a tile of scores
  static constexpr int kValueRows = 3;  // rows of a tile of values
  static constexpr int kValueVectors = 1;
  template <int R>
  static constexpr int blocks_for_rows() {
    return R == 1 ? 2 : 1;
  }

  template <class Op>
  static F map(const Op& op) {
    F out;
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      out.q[i] = op(i);
    }
    return out;
  }
  static F broadcast(float x) {
    return map([x](int) { return Quad{x, x, x, x}; });
  }
  static F zero() { return broadcast(0.0F); }
  static F load(const float* p) {
    F out;
    __builtin_memcpy(&out, p, sizeof out);
    return out;
  }
  static void store(float* p, F x) { __builtin_memcpy(p, &x, sizeof x); }
  static F add(F a, F b) {
    return map([&](int i) { return a.q[i] + b.q[i]; });
  }
  static F sub(F a, F b) {
    return map([&](int i) { return a.q[i] - b.q[i]; });
  }
  static F mul(F a, F b) {
    return map([&](int i) { return a.q[i] * b.q[i]; });
  }
  static F div(F a, F b) {
    return map([&](int i) { return a.q[i] / b.q[i]; });
  }
  static F fma(F a, F b, F c) {
    return map([&](int i) { return a.q[i] * b.q[i] + c.q[i]; });
  }
  static F fms(F a, F b, F c) {
    return map([&](int i) { return a.q[i] * b.q[i] - c.q[i]; });
  }
  // a where a > b, else b.
  static F max(F a, F b) {
    return map([&](int i) { return select(a.q[i] > b.q[i], a.q[i], b.q[i]); });
  }
  // To the nearest integer; any value for |x| of 2^22 and more, which scale_by_pow2() drops.
  static F round(F x) {
    const Quad magic = {12582912.0F, 12582912.0F, 12582912.0F, 12582912.0F};
    return map([&](int i) { return (x.q[i] + magic) - magic; });
  }
  // p 2^n, or +0 where x < -126. n is an integer <= 0.
  static F scale_by_pow2(F p, F n, F x) {
    const Quad magic = {12582912.0F, 12582912.0F, 12582912.0F, 12582912.0F};
    const Quad lowest = {-126.0F, -126.0F, -126.0F, -126.0F};
    return map([&](int i) {
      const IntQuad exponent = bits(n.q[i] + magic) - std::int32_t{0x4b400000} + std::int32_t{127};
      const IntQuad dropped = x.q[i] < lowest;
      const Quad scaled = p.q[i] * from_bits(exponent << 23);
      return from_bits(bits(scaled) & ~dropped);
    });
  }
  static F copy_sign(F magnitude, F sign) {
    return map([&](int i) {
      return from_bits((bits(magnitude.q[i]) & 0x7fffffff) | (bits(sign.q[i]) & ~0x7fffffff));
    });
  }
  // Lanes [lo, hi) of x, `fill` elsewhere.
  static F keep_lanes(F x, int lo, int hi, float fill) {
    float lanes[kLanes];
    store(lanes, x);
    for (int i = 0; i < kLanes; ++i) {
      lanes[i] = i >= lo && i < hi ? lanes[i] : fill;
    }
    return load(lanes);
  }
  static float reduce_max(F x) {
    float lanes[kLanes];
    store(lanes, x);
    float out = lanes[0];
    for (int i = 1; i < kLanes; ++i) {
      out = out > lanes[i] ? out : lanes[i];
    }
    return out;
  }
  static float reduce_add(F x) {
    const Quad sum = (x.q[0] + x.q[1]) + (x.q[2] + x.q[3]);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }
  static float first_lane(F x) { return x.q[0][0]; }

  static void widen_to_bf16(const std::int8_t* from, std::uint16_t* to, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const float x = from[i];
      std::uint32_t u;
      __builtin_memcpy(&u, &x, sizeof u);
      to[i] = static_cast<std::uint16_t>(u >> 16);
    }
  }

  // Nibbles of archived pages (archive_page.h). count: a multiple of 128.
  static void widen_codes(const std::byte* from, std::uint16_t* to, std::size_t count) {
    for (std::size_t i = 0; i < count; i += 128) {
      std::uint16_t words[32];
      __builtin_memcpy(words, from + i / 2, sizeof words);
      for (std::size_t k = 0; k < 4; ++k) {
        for (std::size_t j = 0; j < 32; ++j) {
          const float x = static_cast<float>(words[j] >> 4 * k & 15) - 7.5F;
          std::uint32_t u;
          __builtin_memcpy(&u, &x, sizeof u);
          to[i + 32 * k + j] = static_cast<std::uint16_t>(u >> 16);
        }
      }
    }
  }

  // Pairs of bf16 read as 32-bit words; queries and weights are floats rounded to bf16.
  struct Bf16Dot {
    struct Line {
      F even;
      F odd;
    };
    // One vector holds the sum: nothing to fold.
    using Sum = F;
    static Sum clear() { return PortableSimd::zero(); }
    static Sum fold(Sum sum) { return sum; }
    static F total(Sum sum) { return sum; }
    static constexpr int kPerLine = 2;
    static constexpr std::size_t kElementBytes = 4;
    static constexpr bool kAccurateExp = false;

    static Line load(const std::byte* p) {
      const F words = PortableSimd::load(reinterpret_cast<const float*>(p));
      return {map([&](int i) { return from_bits(bits(words.q[i]) << 16); }),
              map([&](int i) { return from_bits(bits(words.q[i]) & ~0xffff); })};
    }
    static F step(F acc, const std::byte* row, int line, const Line& l) {
      const float* pair = reinterpret_cast<const float*>(row) + 2 * line;
      return fma(broadcast(pair[1]), l.odd, fma(broadcast(pair[0]), l.even, acc));
    }
    static F store(std::byte* p, F x) {
      const F rounded = map([&](int i) {
        const IntQuad u = bits(x.q[i]);
        return from_bits((u + 0x7fff + ((u >> 16) & 1)) & ~0xffff);
      });
      PortableSimd::store(reinterpret_cast<float*>(p), rounded);
      return rounded;
    }
  };

 private:
  static IntQuad bits(Quad x) {
    IntQuad out;
    __builtin_memcpy(&out, &x, sizeof out);
    return out;
  }
  static Quad from_bits(IntQuad x) {
    Quad out;
    __builtin_memcpy(&out, &x, sizeof out);
    return out;
  }
  static Quad select(IntQuad mask, Quad a, Quad b) {
    return from_bits((mask & bits(a)) | (~mask & bits(b)));
  }
};

}  // namespace
}  // namespace karez
