// Reads arbitrary bytes as a model file, in every way that Karez reads one: what the fuzzer calls,
// and the test that replays its findings.
//
// Thread: no state.
#pragma once

#include <cstddef>
#include <span>

namespace karez::test {

// Parses the bytes and uses every accessor on whatever comes out. Bytes that are no model are fine;
// a crash, a sanitizer report or a message without the file's name is a finding.
// Returns whether the bytes are a complete model.
bool read_any_file(std::span<const std::byte> bytes);

}  // namespace karez::test
