#include "engine/bench_measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace karez {
namespace {

constexpr double kMsPerSecond = 1000;

// The cost of work in units of one prefilled token at depth 0, roughly; only the progress uses it.
double prefill_cost(int from, int to) {
  constexpr double kTokensThatDoubleCost = 4096;
  return (to - from) * (1 + (from + to) / (2 * kTokensThatDoubleCost));
}
double decode_cost(int depth, int concurrency, int steps) {
  constexpr double kWeightsCost = 5;
  constexpr double kTokensRead = 1000;
  return steps * (kWeightsCost + concurrency * depth / kTokensRead);
}

struct Repetition {
  double tokens_per_second;
  BenchDecode decode;
  double bandwidth_bytes_per_second;  // measured in the same turn; 0: unknown
};

BenchStepMs step_ms(const BenchDecode& decode) {
  const double to_ms = kMsPerSecond / decode.steps;
  BenchStepMs ms;
  ms.total = decode.seconds * to_ms;
  if (decode.times.steps > 0) {
    ms.dense = decode.times.dense * to_ms;
    ms.attention = decode.times.attention * to_ms;
    ms.select = decode.times.select * to_ms;
    ms.attend = decode.times.attend * to_ms;
    ms.other = ms.total - *ms.dense - *ms.attention;
  }
  if (decode.traffic) {
    ms.stall = decode.traffic->stall_seconds * to_ms;
  }
  return ms;
}

class Measurement {
 public:
  Measurement(std::span<const BenchSubject> subjects, const BenchShape& shape,
              const BenchTokens& tokens, const BandwidthProbe& probe, const BenchProgress& progress)
      : subjects_(subjects),
        shape_(shape),
        tokens_(tokens),
        probe_(probe),
        progress_(progress),
        prefill_seconds_(subjects.size()) {
    const auto engines = static_cast<double>(subjects.size());
    total_cost_ = engines * shape.prefill_repetitions * prefill_cost(0, shape.max_depth());
    for (const int depth : shape.depths) {
      for (const int concurrency : shape.concurrencies) {
        total_cost_ += engines * (shape.repetitions + 1) *
                       decode_cost(depth, concurrency, shape.generate_tokens);
      }
    }
  }

  Expected<std::vector<BenchRun>> run() {
    for (int repetition = 0; repetition < shape_.prefill_repetitions; ++repetition) {
      int from = 0;
      for (const BenchSubject& subject : subjects_) {
        subject.engine->clear();
      }
      std::vector<double> seconds(subjects_.size(), 0);
      for (const int depth : shape_.depths) {
        if (auto done = prefill(from, depth, seconds); !done) {
          return fail(done.error());
        }
        from = depth;
        // Copies are made of the base as it stands now, so decoding belongs to the first pass.
        if (repetition == 0) {
          if (auto done = decode_all(depth); !done) {
            return fail(done.error());
          }
        }
      }
    }
    add_prefill_figures();
    return std::move(runs_);
  }

 private:
  struct PrefillSeconds {
    int depth;
    double seconds;
  };

  Expected<void> prefill(int from, int to, std::vector<double>& seconds) {
    const std::span<const TokenId> segment =
        std::span(tokens_.prompt)
            .subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(to - from));
    for (std::size_t s = 0; s < subjects_.size(); ++s) {
      report(fmt::format("{} reads the prompt up to token {}", subjects_[s].labels.engine, to));
      const Expected<double> taken = subjects_[s].engine->prefill(segment);
      if (!taken) {
        return fail(taken.error());
      }
      seconds[s] += *taken;
      prefill_seconds_[s].push_back({to, seconds[s]});
      done_cost_ += prefill_cost(from, to);
    }
    return {};
  }

  Expected<void> decode_all(int depth) {
    for (const int concurrency : shape_.concurrencies) {
      for (const BenchSubject& subject : subjects_) {
        report(fmt::format("{} gets ready at depth {} x {}", subject.labels.engine, depth,
                           concurrency));
        if (auto made = subject.engine->make_copies(concurrency); !made) {
          return made;
        }
      }
      if (auto done = decode(depth, concurrency); !done) {
        return done;
      }
      for (const BenchSubject& subject : subjects_) {
        subject.engine->drop_copies();
      }
    }
    return {};
  }

  // [generate_tokens][concurrency]
  std::vector<TokenId> continuation(int depth, int concurrency) const {
    const auto copies = static_cast<std::size_t>(concurrency);
    const auto steps = static_cast<std::size_t>(shape_.generate_tokens);
    const auto first = static_cast<std::size_t>(depth);
    std::vector<TokenId> tokens(
        tokens_.continuation.begin(),
        tokens_.continuation.begin() + static_cast<std::ptrdiff_t>(copies * steps));
    if (tokens_.text.size() >= first + steps) {
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        tokens[i] = tokens_.text[first + i / copies];
      }
    }
    return tokens;
  }

  Expected<void> decode(int depth, int concurrency) {
    const std::vector<TokenId> tokens = continuation(depth, concurrency);
    std::vector<std::vector<Repetition>> repetitions(subjects_.size());
    // The first turn is not counted: graphs are built and pages touched in it.
    for (int turn = 0; turn <= shape_.repetitions; ++turn) {
      Expected<double> bandwidth = 0.0;
      if (probe_ && turn > 0) {
        bandwidth = probe_();
        if (!bandwidth) {
          return fail(bandwidth.error());
        }
      }
      for (std::size_t s = 0; s < subjects_.size(); ++s) {
        report(fmt::format("{} decodes at depth {} x {}", subjects_[s].labels.engine, depth,
                           concurrency));
        const Expected<BenchDecode> decoded = subjects_[s].engine->decode(tokens);
        if (!decoded) {
          return fail(decoded.error());
        }
        done_cost_ += decode_cost(depth, concurrency, shape_.generate_tokens);
        if (turn > 0) {
          repetitions[s].push_back(
              {static_cast<double>(tokens.size()) / decoded->seconds, *decoded, *bandwidth});
        }
      }
    }
    for (std::size_t s = 0; s < subjects_.size(); ++s) {
      add_run(subjects_[s], depth, concurrency, std::move(repetitions[s]));
    }
    return {};
  }

  void add_run(const BenchSubject& subject, int depth, int concurrency,
               std::vector<Repetition> repetitions) {
    BenchRun run = subject.labels;
    run.depth = depth;
    run.concurrency = concurrency;
    for (const Repetition& repetition : repetitions) {
      run.decode_repetitions.push_back(repetition.tokens_per_second);
    }
    run.decode_tokens_per_second = median(run.decode_repetitions);
    // The parts of one repetition, which add up; medians of each part would not.
    const auto middle =
        std::find_if(repetitions.begin(), repetitions.end(), [&](const Repetition& repetition) {
          return repetition.tokens_per_second == run.decode_tokens_per_second;
        });
    if (middle != repetitions.end()) {
      run.step_ms = step_ms(middle->decode);
      if (const auto& traffic = middle->decode.traffic) {
        const double steps = middle->decode.steps;
        run.home_misses = static_cast<double>(traffic->demand_misses) / steps;
        run.home_miss_share = static_cast<double>(traffic->demand_misses) /
                              std::max(1.0, static_cast<double>(traffic->blocks_needed));
        run.home_read_bytes = static_cast<double>(traffic->bytes_read) / steps;
        run.home_written_bytes = static_cast<double>(traffic->bytes_written) / steps;
        run.blocks_skipped = static_cast<double>(traffic->missed.blocks_skipped) / steps;
        run.missed_mass_mean = traffic->missed.mean();
        run.missed_mass_worst = traffic->missed.worst;
        run.agreement = traffic->agreement;
        const PrefetchStats& prefetch = traffic->prefetch;
        run.layers_ready_share = static_cast<double>(prefetch.layers_ready) /
                                 std::max(1.0, static_cast<double>(prefetch.layers_read));
        if (prefetch.total().predicted > 0) {
          run.lookahead = BenchLookahead{prefetch, middle->decode.steps};
        }
      }
      if (middle->decode.times.steps > 0) {
        run.read_bandwidth_bytes_per_second = middle->bandwidth_bytes_per_second;
        run.kv_read_bytes =
            (middle->decode.times.attention_read_bytes + middle->decode.times.index_read_bytes) /
            middle->decode.times.steps;
      }
    }
    runs_.push_back(std::move(run));
  }

  void add_prefill_figures() {
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      BenchRun& run = runs_[i];
      for (const PrefillSeconds& measured : prefill_seconds_[i % subjects_.size()]) {
        if (measured.depth == run.depth) {
          run.prefill_repetitions.push_back(run.depth / measured.seconds);
        }
      }
      run.prefill_tokens_per_second = median(run.prefill_repetitions);
    }
  }

  void report(std::string_view what) const {
    if (progress_) {
      progress_(what, std::min(1.0, done_cost_ / total_cost_));
    }
  }

  std::span<const BenchSubject> subjects_;
  const BenchShape& shape_;
  const BenchTokens& tokens_;
  const BandwidthProbe& probe_;
  const BenchProgress& progress_;
  std::vector<std::vector<PrefillSeconds>> prefill_seconds_;  // [subject][repetition x depth]
  std::vector<BenchRun> runs_;  // subjects in turn, for each depth and concurrency
  double total_cost_ = 0;
  double done_cost_ = 0;
};

}  // namespace

int BenchShape::max_depth() const {
  return depths.empty() ? 0 : *std::max_element(depths.begin(), depths.end());
}

int BenchShape::max_concurrency() const {
  return concurrencies.empty() ? 0 : *std::max_element(concurrencies.begin(), concurrencies.end());
}

Expected<std::vector<BenchRun>> measure(std::span<const BenchSubject> subjects,
                                        const BenchShape& shape, const BenchTokens& tokens,
                                        const BandwidthProbe& probe,
                                        const BenchProgress& progress) {
  return Measurement(subjects, shape, tokens, probe, progress).run();
}

void derive_figures(std::vector<BenchRun>& runs) {
  for (BenchRun& run : runs) {
    const double bandwidth = run.read_bandwidth_bytes_per_second;
    if (bandwidth > 0 && run.kv_read_bytes > 0) {
      const double floor_ms = static_cast<double>(run.kv_read_bytes) / bandwidth * kMsPerSecond;
      const double all_ms =
          static_cast<double>(run.kv_read_bytes + run.weight_read_bytes) / bandwidth * kMsPerSecond;
      run.bandwidth_share = all_ms / run.step_ms.total;
      if (run.step_ms.attention) {
        run.attention_over_floor = *run.step_ms.attention / floor_ms;
      }
    }
  }
  for (BenchRun& ours : runs) {
    for (const BenchRun& other : runs) {
      if (ours.engine != "karez" || other.depth != ours.depth ||
          other.concurrency != ours.concurrency) {
        continue;
      }
      const double ratio = ours.decode_tokens_per_second / other.decode_tokens_per_second;
      if (other.engine == "llama.cpp") {
        ours.prefill_ratio = ours.prefill_tokens_per_second / other.prefill_tokens_per_second;
        ours.decode_ratio = ratio;
      } else if (ours.kv_mode == "sparse" && other.kv_mode == "dense") {
        ours.decode_over_dense = ratio;
      }
    }
  }
}

}  // namespace karez
