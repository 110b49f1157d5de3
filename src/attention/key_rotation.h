// A fixed orthonormal rotation of one head's vector: random signs, then a Hadamard transform.
//
// It spreads what a few coordinates hold over all of them, so that one uniform step codes every
// coordinate well ("QuaRot", arXiv 2404.00456; "SRHT" in the sketching literature). Rotating both
// sides leaves dot products as they are. A head dim that is no power of two is cut into its
// power-of-two parts, largest first (80 = 64 + 16), each rotated by itself.
//
// The signs are the same in every process and build: stored codes depend on them.
// Thread: a pure function.
#pragma once

#include <span>

namespace karez {

// In place. Requires: x.size() is a multiple of 16 and at most 512.
void rotate_key(std::span<float> x);
// The inverse.
void rotate_key_back(std::span<float> x);

}  // namespace karez
