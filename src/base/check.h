// KAREZ_CHECK for bugs: on in every build. KAREZ_DCHECK for hot loops: on with KAREZ_DCHECKS.
//
// User input must never reach a CHECK; it gets a Status.
#pragma once

#include <string_view>

namespace karez {

// Prints "file:line: check failed: condition: message" to stderr and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               std::string_view message);

}  // namespace karez

#define KAREZ_CHECK(condition, message)                                 \
  do {                                                                  \
    if (!(condition)) [[unlikely]] {                                    \
      ::karez::check_failed(__FILE__, __LINE__, #condition, (message)); \
    }                                                                   \
  } while (false)

#ifdef KAREZ_DCHECKS
#define KAREZ_DCHECK(condition, message) KAREZ_CHECK(condition, message)
#else
#define KAREZ_DCHECK(condition, message) \
  do {                                   \
  } while (false)
#endif
