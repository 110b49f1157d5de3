// How many threads a computation should use when nobody says.
#pragma once

namespace karez {

// Physical cores that this process may run on (affinity mask), at most what its CPU quota (cgroup
// v2) allows; at least 1. Two hardware threads of a core share its vector units, so the second one
// adds nothing to dense math.
int default_num_threads();

}  // namespace karez
