#include "cli/kv_type_flags.h"

#include <fmt/format.h>

#include "cli/report.h"

namespace karez {

Expected<KvType> kv_type_of_flags(const std::string& cache_type_k,
                                  const std::string& cache_type_v) {
  if (cache_type_k.empty() && cache_type_v.empty()) {
    return KvType::kBf16;
  }
  if (cache_type_k.empty() || cache_type_v.empty()) {
    const bool is_keys = cache_type_v.empty();
    const std::string& named = is_keys ? cache_type_k : cache_type_v;
    const char* flag = is_keys ? "-ctk" : "-ctv";
    auto type = parse_kv_type(named);
    if (!type) {
      return fail(type.error().code(), fmt::format("{}: {}", flag, type.error().message()));
    }
    report_note(fmt::format("{} is {}, and so is {}: keys and values have the same type here", flag,
                            named, is_keys ? "-ctv" : "-ctk"));
    return *type;
  }
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
                fmt::format("-ctk is {} and -ctv is {}, allowed are equal ones: keys and values "
                            "have the same type here",
                            cache_type_k, cache_type_v));
  }
  return *keys;
}

}  // namespace karez
