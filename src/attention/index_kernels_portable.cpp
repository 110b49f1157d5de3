#include "attention/index_scan.h"
#include "attention/index_summaries.h"
#include "attention/simd_portable.h"

namespace karez {
namespace {

struct PortableInts {
  using Quad = std::uint32_t __attribute__((vector_size(16)));
  using IntQuad = std::int32_t __attribute__((vector_size(16)));
  struct Words {
    Quad q[4];
  };
  struct Sum {
    IntQuad q[4];
  };

  static constexpr int kBlocks = 1;

  static Words load(const std::byte* p) {
    Words out;
    __builtin_memcpy(&out, p, sizeof out);
    return out;
  }
  template <int n>
  static Words shift_right(const Words& w) {
    return {{w.q[0] >> n, w.q[1] >> n, w.q[2] >> n, w.q[3] >> n}};
  }
  template <int n>
  static Words field(const Words& w) {
    return masked(shift_right<n>(w), 0x03030303U);
  }
  static Words with_third_bit(const Words& w, const Words& high) {
    const Words bit = masked(high, 0x01010101U);
    Words out;
    for (int i = 0; i < 4; ++i) {
      out.q[i] = w.q[i] | (bit.q[i] << 2);
    }
    return out;
  }
  static Sum clear() { return {}; }
  static const std::int8_t* four_of_query(const std::int8_t* query) { return query; }
  static Sum dot(const Sum& sum, const Words& w, const std::int8_t* query) {
    Sum out = sum;
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < 4; ++j) {
        const Quad code = (w.q[i] >> (8 * j)) & 0xffU;
        out.q[i] += reinterpret_cast<IntQuad>(code) * std::int32_t{query[j]};
      }
    }
    return out;
  }
  static PortableSimd::F to_float(const Sum& sum) {
    PortableSimd::F out;
    for (int i = 0; i < 4; ++i) {
      out.q[i] = __builtin_convertvector(sum.q[i], PortableSimd::Quad);
    }
    return out;
  }
  static PortableSimd::F widen_bf16(const std::byte* p) {
    std::uint32_t words[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      std::uint16_t half;
      __builtin_memcpy(&half, p + std::ptrdiff_t{2} * i, sizeof half);
      words[i] = std::uint32_t{half} << 16;
    }
    PortableSimd::F out;
    __builtin_memcpy(&out, words, sizeof out);
    return out;
  }
  static PortableSimd::F sum_each(const PortableSimd::F* vectors) {
    return sum_each_by_one<PortableSimd>(vectors);
  }
  static PortableSimd::F exp2_of(const PortableSimd::F& x) {
    return exp2_nonpositive<PortableSimd, false>(x);
  }

 private:
  static Words masked(const Words& w, std::uint32_t mask) {
    return {{w.q[0] & mask, w.q[1] & mask, w.q[2] & mask, w.q[3] & mask}};
  }
};

}  // namespace

constinit const IndexKernels kPortableIndexKernels = index_kernels<PortableSimd, PortableInts>();

}  // namespace karez
