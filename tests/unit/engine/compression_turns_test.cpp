#include "engine/compression_turns.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace karez {
namespace {

using Phases = std::vector<WindowCompressor::Phase>;

TEST(UnitsOfTurn, AsManyAsEveryTurnHasToDoToBeInTime) {
  const struct {
    Phases phases;
    int units;
  } cases[] = {
      {{}, 0},
      {{{0, 0}}, 0},
      {{{0, 100}}, 0},
      {{{5, 0}}, 5},   // now or never
      {{{5, 1}}, 3},   // this turn and one more
      {{{10, 9}}, 1},  // ten turns
      {{{11, 9}}, 2},
      {{{60, 15}, {0, 300}}, 4},
      {{{10, 9}, {10, 9}}, 2},   // together
      {{{10, 9}, {10, 19}}, 1},  // one after the other
      {{{10, 9}, {30, 19}}, 2},  // the later one is more
      {{{30, 19}, {10, 9}}, 2},  // in any order
      {{{8, 0}, {100, 99}}, 8},
      {{{8, 3}, {100, 99}}, 2},
  };
  for (const auto& one : cases) {
    EXPECT_EQ(units_of_turn(one.phases), one.units)
        << one.phases.size() << " phases, the first "
        << (one.phases.empty() ? 0 : one.phases[0].units);
  }
}

// Earliest deadline first with so many units in each turn: nobody is late, if nobody comes later.
TEST(UnitsOfTurn, NobodyIsLate) {
  std::mt19937 random(3);
  const auto roll = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int round = 0; round < 200; ++round) {
    Phases phases(static_cast<std::size_t>(roll(1, 8)));
    for (WindowCompressor::Phase& phase : phases) {
      phase = {roll(0, 60), roll(0, 40)};
    }
    int most = 0;
    while (!phases.empty()) {
      int units = units_of_turn(phases);
      EXPECT_LE(most == 0 ? 0 : units, std::max(most, 1)) << "less as it goes on, not more";
      most = units;
      std::ranges::sort(phases, {}, &WindowCompressor::Phase::tokens_left);
      for (WindowCompressor::Phase& phase : phases) {
        const int done = std::min(units, phase.units);
        phase.units -= done;
        units -= done;
      }
      std::erase_if(phases, [](const WindowCompressor::Phase& phase) { return phase.units == 0; });
      for (WindowCompressor::Phase& phase : phases) {
        ASSERT_GT(phase.tokens_left, 0) << "it is late";
        --phase.tokens_left;
      }
    }
  }
}

}  // namespace
}  // namespace karez
