#include "cli/kv_type_flags.h"

#include <fmt/format.h>

namespace karez {

Expected<KvType> kv_type_of_flags(const std::string& cache_type_k,
                                  const std::string& cache_type_v) {
  auto keys = parse_kv_type(cache_type_k);
  if (!keys) {
    return fail(keys.error().code(), "-ctk: " + keys.error().message());
  }
  auto values = parse_kv_type(cache_type_v);
  if (!values) {
    return fail(values.error().code(), "-ctv: " + values.error().message());
  }
  if (*keys != *values) {
    return fail(StatusCode::kInvalidArgument,
                fmt::format("-ctk is {} and -ctv is {}; keys and values have the same type here, "
                            "give both",
                            cache_type_k, cache_type_v));
  }
  return *keys;
}

}  // namespace karez
