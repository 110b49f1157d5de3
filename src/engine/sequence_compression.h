// The compression of one sequence that nobody schedules: generation and evaluation.
//
// Thread: the KV store's owner thread. Borrows: the compressor; the sequence must be open.
#pragma once

#include "engine/window_compressor.h"

namespace karez {

class SequenceCompression {
 public:
  // compressor may be null if the schedule is off.
  SequenceCompression(WindowCompressor* compressor, SequenceId sequence,
                      const CompressionSchedule& schedule);
  ~SequenceCompression();
  SequenceCompression(const SequenceCompression&) = delete;
  SequenceCompression& operator=(const SequenceCompression&) = delete;

  // Where these rows of a step keep their queries; null: no window is scored with them.
  QueryRing* ring(int first_row, int num_rows);
  // Rows that a step may have behind num_tokens. >= 1 after advance().
  int max_rows(int num_tokens) const;
  // After a step, with the tokens whose KV is written: does what is due.
  // False: the sequence's KV could not be read from home.
  [[nodiscard]] bool advance(int num_tokens);
  // When the sequence lacks slots: those of the window under way. False: there are none.
  [[nodiscard]] bool give_back_slots();

 private:
  CompressionTask task(int num_tokens) const {
    return {sequence_, num_tokens, schedule_, window_, schedule_.publication(window_)};
  }

  WindowCompressor* compressor_;
  SequenceId sequence_;
  CompressionSchedule schedule_;
  int window_ = 0;
  bool is_stopped_ = false;  // there was no room to pack: it goes on without
};

}  // namespace karez
