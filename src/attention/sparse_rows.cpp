#include "attention/sparse_rows.h"

#include <algorithm>

namespace karez {

std::span<const std::int32_t> archived_of(std::span<const std::int32_t> list,
                                          const ArchivedEntries& archived) {
  if (archived.count() == 0) {
    return {};
  }
  const auto begin = std::ranges::lower_bound(list, archived.begin);
  return {begin, std::lower_bound(begin, list.end(), archived.end)};
}

SparseRows find_sparse_rows(std::span<const SequenceRows> sequences, const SparseOptions& options,
                            int num_kv_heads) {
  SparseRows out;
  if (!options.is_on()) {
    return out;
  }
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const SequenceRows& rows = sequences[s];
    // The first row that may be sparse; 64 bits, because the position may be the largest int.
    const std::int64_t skipped = std::int64_t{rows.first_sparse_position} - rows.first_position;
    for (std::int64_t row = std::max<std::int64_t>(0, skipped); row < rows.num_rows; ++row) {
      const int position = rows.first_position + static_cast<int>(row);
      const int place = rows.place_of(position, 0);
      const SelectionShape shape = selection_shape(options.rule(), place);
      if (shape.selects_all()) {
        continue;
      }
      const bool is_hint = row >= rows.num_rows - rows.num_hint_rows;
      out.rows.push_back({static_cast<int>(s), static_cast<int>(row), position, place, is_hint,
                          shape, out.num_selected});
      out.num_selected +=
          static_cast<std::size_t>(shape.num_selected()) * static_cast<std::size_t>(num_kv_heads);
    }
  }
  return out;
}

}  // namespace karez
