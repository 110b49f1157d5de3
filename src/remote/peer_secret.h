// Randomness, and the proof that a peer knows the secret: HMAC-SHA256 over both nonces and the side
// that proves, so that neither a recorded nor a mirrored proof is of use.
//
// Thread: any.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "base/status.h"
#include "remote/wire_messages.h"

namespace karez {

// Fails: kInternal if the system has no randomness.
std::optional<Status> fill_random(std::span<std::uint8_t> bytes);

enum class PeerSide { kConsumer, kProducer };

Proof make_proof(std::string_view secret, PeerSide side, const Nonce& consumer,
                 const Nonce& producer);
// In constant time.
bool is_same_proof(const Proof& a, const Proof& b);

}  // namespace karez
