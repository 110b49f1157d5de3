// A model file with its weights in f32: the same model, without the rounding that quantised
// products bring in, so that two right engines agree to the last few bits.
//
// Thread: no state.
#pragma once

#include <string>

namespace karez::test {

// Writes to `to` the file `from` with every tensor converted to f32. Needs 4 bytes a parameter.
// Throws std::runtime_error if a file cannot be read or written.
void write_dequantised_copy(const std::string& from, const std::string& to);

}  // namespace karez::test
