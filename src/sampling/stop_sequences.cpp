#include "sampling/stop_sequences.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace karez {

StopSequences::StopSequences(std::vector<std::string> texts) : texts_(std::move(texts)) {
  for (const std::string& text : texts_) {
    KAREZ_CHECK(!text.empty(), "a stop text must not be empty");
  }
  std::ranges::sort(texts_, std::ranges::greater{}, &std::string::size);
}

std::string StopSequences::push(std::string_view text) {
  if (stopped_ || text.empty()) {
    return {};
  }
  const std::size_t first_new = held_.size();
  held_.append(text);

  for (std::size_t end = first_new + 1; end <= held_.size(); ++end) {
    const std::string_view seen = std::string_view(held_).substr(0, end);
    for (const std::string& stop : texts_) {
      if (seen.ends_with(stop)) {
        stopped_ = true;
        match_ = stop;
        held_.resize(end - stop.size());
        return std::exchange(held_, {});
      }
    }
  }

  // No stop text is complete, so only a suffix that is a proper beginning of one must wait.
  const std::size_t longest = texts_.empty() ? 0 : texts_.front().size() - 1;
  std::size_t keep_from = held_.size() - std::min(longest, held_.size());
  const auto may_become_stop = [&](std::string_view rest) {
    return std::ranges::any_of(texts_,
                               [&](std::string_view stop) { return stop.starts_with(rest); });
  };
  while (keep_from < held_.size() && !may_become_stop(std::string_view(held_).substr(keep_from))) {
    ++keep_from;
  }
  std::string safe = held_.substr(0, keep_from);
  held_.erase(0, keep_from);
  return safe;
}

std::string StopSequences::finish() { return stopped_ ? std::string() : std::exchange(held_, {}); }

}  // namespace karez
