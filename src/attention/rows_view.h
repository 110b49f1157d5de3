// A matrix of rows in the batch: f32 [num_rows][...], row r starts at data + r * row_stride.
//
// Thread: a view; the matrix must outlive it.
#pragma once

#include <cstddef>

namespace karez {

struct RowsView {
  const float* data = nullptr;
  std::size_t row_stride = 0;  // in floats
};

}  // namespace karez
