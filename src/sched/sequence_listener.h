// Somebody who keeps something beside the KV of the scheduler's sequences (compression: queries,
// new blocks), told at once when a sequence is forked or given up, or lacks slots.
//
// Thread: called by the scheduler, on its owner thread.
#pragma once

#include "kv/kv_types.h"

namespace karez {

class SequenceListener {
 public:
  SequenceListener() = default;
  virtual ~SequenceListener() = default;
  SequenceListener(const SequenceListener&) = delete;
  SequenceListener& operator=(const SequenceListener&) = delete;

  // The fork has the same tokens.
  virtual void fork(SequenceId of, SequenceId fork) = 0;
  // Its KV is given up.
  virtual void forget(SequenceId sequence) = 0;
  // The sequence is demoted, or one that runs cannot go on: slots that were taken on its behalf go
  // back, and are asked for again later. False: there are none.
  virtual bool give_back_slots(SequenceId sequence) = 0;
};

}  // namespace karez
