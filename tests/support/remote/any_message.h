// Lets both ends of a connection read arbitrary bytes: what the fuzzer calls, and the test that
// replays its findings.
//
// Thread: no state.
#pragma once

#include <cstddef>
#include <span>

namespace karez::test {

// The bytes are a script. Each step: a byte that says to whom (bit 0: producer or consumer; bit 1:
// as they are, or as the body of a frame with a proper header; bit 2: answers are delivered; high
// bits: the type), a byte with the length, and so many bytes.
// The script is followed once for each wire type, and read as a block in 4 bits too.
// A crash, a sanitizer report or an answer that is no proper frame is a finding.
void read_any_message(std::span<const std::byte> script);

}  // namespace karez::test
