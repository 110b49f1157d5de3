// How well a guess names what a row then selects: of the last row's list, and of a probe's.
//
//   agreement  share of the row's blocks that the guess has named too, sink and recent ones
//   included mass       share of the attention of the row's blocks that these have, as selection
//   estimates it
//
// (A draft that is accepted is the row itself: its agreement is 1.) For measuring alone: it keeps a
// copy of every list.
// Thread: BlockLoader's.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "attention/selection_listener.h"

namespace karez {

// Of the lists of all rows, layers and KV heads.
struct AgreementFigures {
  std::int64_t lists = 0;
  double agreement_mean = 0;
  double agreement_p1 = 0;  // all but the worst hundredth are better
  double agreement_worst = 0;
  double mass_mean = 0;
  double mass_p1 = 0;
  double mass_worst = 0;
};

class LookaheadMeter {
 public:
  // Lists of a layer, before any is shortened; with masses (SparseOptions::list_masses).
  void note(int layer, std::span<const SelectedBlocks> selected);

  struct Figures {
    AgreementFigures previous;
    AgreementFigures probe;
  };
  // Since the last call.
  Figures take();

 private:
  struct Key {
    int layer;
    int kv_head;
    int sequence;
    auto operator<=>(const Key&) const = default;
  };
  struct Guess {
    int position = -1;  // of the row that it is for
    std::vector<std::int32_t> blocks;
  };
  struct Samples {
    std::vector<float> agreement;
    std::vector<float> mass;
    AgreementFigures figures();
  };
  static void compare(const SelectedBlocks& list, const Guess& guess, Samples& samples);

  std::map<Key, std::array<Guess, 2>> guesses_;  // of the last row, of a probe
  Samples previous_;
  Samples probe_;
};

}  // namespace karez
