// What a producer's engine tells a consumer's beside the KV: the note of a manifest.
//
//   logits of the prompt's last token, then the places of the blocks that the first step will read
//
// docs/formats.md has it byte by byte.
// Thread: functions of their arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace karez {

struct TransferNote {
  std::vector<float> logits;  // [vocab_size]; empty: the note is of another kind
  // Of blocks in the manifest, [layers][kv heads][num_blocks] as one row. Not checked.
  std::vector<std::uint32_t> working_set;
};

// The working set is left out where it would make the note longer than max_bytes.
std::vector<std::byte> encode_transfer_note(std::span<const float> logits,
                                            std::span<const std::uint32_t> working_set,
                                            std::size_t max_bytes);
// A note of another length than a whole number of places behind the logits is of another kind.
TransferNote decode_transfer_note(std::span<const std::byte> note, std::size_t vocab_size);

}  // namespace karez
