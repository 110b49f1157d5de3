#include "engine/lookahead_meter.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace karez {

void LookaheadMeter::compare(const SelectedBlocks& list, const Guess& guess, Samples& samples) {
  if (guess.position != list.position || list.blocks.empty()) {
    return;
  }
  std::size_t common = 0;
  double mass = 0;
  double named_mass = 0;
  auto named = guess.blocks.begin();
  for (std::size_t i = 0; i < list.blocks.size(); ++i) {
    const double share = list.masses.empty() ? 0.0 : static_cast<double>(list.masses[i]);
    mass += share;
    named = std::find_if(named, guess.blocks.end(),
                         [&](std::int32_t block) { return block >= list.blocks[i]; });
    if (named != guess.blocks.end() && *named == list.blocks[i]) {
      ++common;
      named_mass += share;
    }
  }
  samples.agreement.push_back(static_cast<float>(common) / static_cast<float>(list.blocks.size()));
  if (mass > 0) {
    samples.mass.push_back(static_cast<float>(named_mass / mass));
  }
}

void LookaheadMeter::note(int layer, std::span<const SelectedBlocks> selected) {
  for (const SelectedBlocks& list : selected) {
    auto& [last, probe] = guesses_[{layer, list.kv_head, list.sequence}];
    if (!list.is_hint) {
      compare(list, last, previous_);
      compare(list, probe, probe_);
    }
    Guess& guess = list.is_hint ? probe : last;
    guess.position = list.position + (list.is_hint ? 0 : 1);
    guess.blocks.assign(list.blocks.begin(), list.blocks.end());
  }
}

AgreementFigures LookaheadMeter::Samples::figures() {
  AgreementFigures figures;
  figures.lists = static_cast<std::int64_t>(agreement.size());
  const auto describe = [](std::vector<float>& values, double& mean, double& p1, double& worst) {
    if (values.empty()) {
      return;
    }
    std::ranges::sort(values);
    mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
    p1 = static_cast<double>(values[values.size() / 100]);
    worst = static_cast<double>(values.front());
  };
  describe(agreement, figures.agreement_mean, figures.agreement_p1, figures.agreement_worst);
  describe(mass, figures.mass_mean, figures.mass_p1, figures.mass_worst);
  return figures;
}

LookaheadMeter::Figures LookaheadMeter::take() {
  const Figures figures{previous_.figures(), probe_.figures()};
  previous_ = {};
  probe_ = {};
  guesses_.clear();
  return figures;
}

}  // namespace karez
