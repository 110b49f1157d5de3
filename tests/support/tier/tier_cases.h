// The tiers that the conformance and property tests run over, each with what drives it in a test.
//
// Thread: one. Owns: the tier, its clock, its folder on disk if it has one.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "kv/tier/tier.h"

namespace karez::test {

struct TierUnderTest {
  std::shared_ptr<const Clock> clock;
  std::unique_ptr<Tier> tier;
  // Lets go of what the case has withheld for ever. May be empty.
  std::function<void()> report_lost;
};

struct TierCase {
  std::string name;
  bool has_faults = false;  // transfers may fail, with a reason
  std::function<TierUnderTest(std::size_t block_bytes, int num_extents)> make;
};

// For GoogleTest.
inline void PrintTo(const TierCase& tier_case, std::ostream* out) { *out << tier_case.name; }

// All of them. A case that cannot be made ends the program with its reason.
const std::vector<TierCase>& tier_cases();

// Submits all, however many turns it takes, and returns the results in the order of coming in.
// Aborts if nothing moves for a minute.
std::vector<TransferResult> run_transfers(TierUnderTest& under_test,
                                          const std::vector<Transfer>& transfers);
// Waits for one or more results; what came in is appended.
void wait_for_results(TierUnderTest& under_test, std::vector<TransferResult>& results);

}  // namespace karez::test
