#include "support/oracle.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "model/tokenizer.h"

namespace karez::test {
namespace {

// log(sum(exp(logits)))
double log_sum_exp(std::span<const float> logits) {
  const float maximum = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(logit - maximum);
  }
  return static_cast<double>(maximum) + std::log(sum);
}

}  // namespace

TokenId argmax(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

float top_margin(std::span<const float> logits) {
  float best = -INFINITY;
  float second = -INFINITY;
  for (const float logit : logits) {
    if (logit > best) {
      second = best;
      best = logit;
    } else {
      second = std::max(second, logit);
    }
  }
  return best - second;
}

void Agreement::add(std::span<const float> ours, std::span<const float> reference, int vocab_size) {
  if (ours.size() != reference.size()) {
    throw std::runtime_error(
        fmt::format("{} logits beside {} of the reference", ours.size(), reference.size()));
  }
  const auto row_size = static_cast<std::size_t>(vocab_size);
  for (std::size_t begin = 0; begin < ours.size(); begin += row_size) {
    add_row(ours.subspan(begin, row_size), reference.subspan(begin, row_size));
  }
}

void Agreement::add_row(std::span<const float> ours, std::span<const float> reference) {
  const double ours_normaliser = log_sum_exp(ours);
  const double reference_normaliser = log_sum_exp(reference);
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double difference =
        std::abs(static_cast<double>(ours[i]) - static_cast<double>(reference[i]));
    // Not max(): a NaN must count as the worst.
    if (!(difference <= max_difference_)) {
      max_difference_ = std::isnan(difference) ? HUGE_VAL : difference;
    }
    sum_difference_ += difference;
    const double log_p = static_cast<double>(reference[i]) - reference_normaliser;
    const double log_q = static_cast<double>(ours[i]) - ours_normaliser;
    // Below this the term is nothing, and exp() of very small numbers is slow.
    constexpr double kSmallestLog = -30;
    if (log_p > kSmallestLog) {
      sum_divergence_ += std::exp(log_p) * (log_p - log_q);
    }
  }
  values_ += static_cast<std::int64_t>(ours.size());
  ++rows_;
  if (argmax(ours) == argmax(reference)) {
    ++same_top_;
  } else {
    max_disagreeing_margin_ = std::max(max_disagreeing_margin_, top_margin(reference));
  }
}

double Agreement::top1_share() const {
  return rows_ == 0 ? 0 : static_cast<double>(same_top_) / static_cast<double>(rows_);
}

double Agreement::mean_difference() const {
  return values_ == 0 ? 0 : sum_difference_ / static_cast<double>(values_);
}

double Agreement::mean_divergence() const {
  return rows_ == 0 ? 0 : sum_divergence_ / static_cast<double>(rows_);
}

std::string Agreement::to_string() const {
  return fmt::format(
      "{} rows: top-1 {:.2f} %, logits differ by {:.5f} at most and {:.6f} on average, KL {:.2e}, "
      "largest margin of a differing top-1 {:.4f}",
      rows_, top1_share() * 100, max_difference_, mean_difference(), mean_divergence(),
      static_cast<double>(max_disagreeing_margin_));
}

Schedule single_sequence_schedule(std::span<const TokenId> text, int prompt_tokens, int num_single,
                                  int step_tokens) {
  Schedule schedule;
  std::size_t at = 0;
  const auto add = [&](std::size_t count, bool want_logits) {
    count = std::min(count, text.size() - at);
    const auto part = text.subspan(at, count);
    schedule.push_back({Chunk{0, {part.begin(), part.end()}, want_logits}});
    at += count;
  };
  const auto last = static_cast<std::size_t>(prompt_tokens - 1);
  while (at < last) {
    add(std::min(static_cast<std::size_t>(step_tokens), last - at), false);
  }
  for (int i = 0; i <= num_single && at < text.size(); ++i) {
    add(1, true);
  }
  while (at < text.size()) {
    add(kMaxLogitRows, true);
  }
  return schedule;
}

Schedule mixed_schedule(std::span<const std::vector<TokenId>> texts,
                        std::span<const int> prompt_tokens) {
  // Uneven on purpose: below, at and above a block, and across blocks.
  constexpr std::array<std::size_t, 6> kPromptChunks = {1, 15, 64, 16, 100, 33};
  constexpr std::array<std::size_t, 5> kContinuationRows = {1, 1, 1, 3, 2};
  Schedule schedule;
  std::vector<std::size_t> at(texts.size(), 0);
  for (std::size_t step = 0;; ++step) {
    std::vector<Chunk> chunks;
    std::size_t rows = 0;
    for (std::size_t s = 0; s < texts.size(); ++s) {
      const auto prompt = static_cast<std::size_t>(prompt_tokens[s]);
      const bool in_prompt = at[s] < prompt;
      const std::size_t wanted = in_prompt
                                     ? kPromptChunks[(step + s) % kPromptChunks.size()]
                                     : kContinuationRows[(step + s) % kContinuationRows.size()];
      const std::size_t end = in_prompt ? prompt : texts[s].size();
      const std::size_t count = std::min(wanted, end - at[s]);
      if (count == 0 || rows + count > kMaxForwardRows) {
        continue;
      }
      const auto part = std::span(texts[s]).subspan(at[s], count);
      chunks.push_back({static_cast<int>(s), {part.begin(), part.end()}, !in_prompt});
      at[s] += count;
      rows += count;
    }
    if (chunks.empty()) {
      return schedule;
    }
    schedule.push_back(std::move(chunks));
  }
}

Agreement compare(TeacherForced& ours, TeacherForced& reference, const Schedule& schedule) {
  Agreement agreement;
  for (const std::vector<Chunk>& chunks : schedule) {
    const auto our_logits = ours.forward(chunks);
    agreement.add(our_logits, reference.forward(chunks), reference.vocab_size());
  }
  return agreement;
}

std::vector<TokenId> real_text(const std::string& path, int num_tokens) {
  std::string text;
  for (const char* name : {"GPL-3", "Apache-2.0", "MPL-2.0"}) {
    std::ifstream file(std::string("/usr/share/common-licenses/") + name);
    std::stringstream content;
    content << file.rdbuf();
    text += content.str();
  }
  const auto tokenizer = Tokenizer::load(path);
  if (!tokenizer) {
    throw std::runtime_error(tokenizer.error().to_string());
  }
  auto tokens = (*tokenizer)->tokenize(text, true, false);
  if (!tokens) {
    throw std::runtime_error(tokens.error().to_string());
  }
  if (tokens->size() < static_cast<std::size_t>(num_tokens)) {
    throw std::runtime_error(fmt::format("the licence texts have {} tokens, the test needs {}",
                                         tokens->size(), num_tokens));
  }
  tokens->resize(static_cast<std::size_t>(num_tokens));
  return std::move(*tokens);
}

}  // namespace karez::test
