// Ends an answer before any of a set of texts, however the tokens cut them.
//
// Text goes in piece by piece. What comes out can no longer be the beginning of a stop text; the
// rest is kept back until it is decided. The stop text that is complete first wins, of several that
// end at the same place the longest, so the result does not depend on how the text is cut. Nothing
// of the winner is ever given out.
// Cost of a piece: its length x the lengths of all stop texts together, at worst.
// Thread: one caller at a time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace karez {

class StopSequences {
 public:
  // Requires: no text is empty (SamplingParams::validate).
  explicit StopSequences(std::vector<std::string> texts);

  // Returns the text that is safe to show now. After a stop text was met: nothing more.
  std::string push(std::string_view text);
  // The answer ended for another reason: what was kept back, as it is no stop text.
  std::string finish();

  bool stopped() const { return stopped_; }
  // The text that ended the answer; empty until one did.
  const std::string& match() const { return match_; }

 private:
  std::vector<std::string> texts_;  // longest first
  std::string held_;                // a proper beginning of one of texts_, as long as possible
  std::string match_;
  bool stopped_ = false;
};

}  // namespace karez
