// What a benchmark measures side by side below a cap: everything resident, and several lookaheads
// with several pools.
//
// Thread: values.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "kv/lookahead.h"

namespace karez {

struct BenchVariant {
  bool is_resident = false;  // no home: all KV is in the fast tier
  LookaheadSources sources;
  std::optional<double>
      share;  // of the sequences' KV, the cap of the fast tier; none: the options'

  std::string name() const;  // "resident", "off@26%", "previous,layer"
};

// "resident", or sources as parse_lookahead() takes them, with or without "@SHARE%" behind.
// Fails: kInvalidArgument with the text and what is allowed.
Expected<BenchVariant> parse_bench_variant(std::string_view text);

}  // namespace karez
