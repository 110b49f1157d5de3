// How the next token is chosen. Names and defaults are llama.cpp's.
//
// Thread: a value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace karez {

inline constexpr std::uint32_t kRandomSeed = 0xFFFFFFFF;

struct SamplingParams {
  float temperature = 0.8F;        // below 1e-6: greedy
  int top_k = 40;                  // 0: off
  float top_p = 0.95F;             // 1: off
  float min_p = 0.05F;             // 0: off
  float typical_p = 1.0F;          // 1: off
  float repeat_penalty = 1.0F;     // 1: off
  int repeat_last_n = 64;          // tokens looked back at; 0: off, -1: all
  float presence_penalty = 0.0F;   // [-2, 2]
  float frequency_penalty = 0.0F;  // [-2, 2]
  std::uint32_t seed = kRandomSeed;
  std::vector<std::string> stop;  // generation ends before any of these texts
  std::string grammar;            // GBNF; empty: none

  // Fails: kInvalidArgument with the flag, its value and the allowed range; field() is the
  // request's field.
  Expected<void> validate() const;
};

}  // namespace karez
