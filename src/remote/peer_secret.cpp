#include "remote/peer_secret.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <string>

#include "base/check.h"

namespace karez {

std::optional<Status> fill_random(std::span<std::uint8_t> bytes) {
  if (RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1) {
    return Status(StatusCode::kInternal, "the system gave no random bytes");
  }
  return std::nullopt;
}

Proof make_proof(std::string_view secret, PeerSide side, const Nonce& consumer,
                 const Nonce& producer) {
  std::string text =
      side == PeerSide::kConsumer ? "karez wire 1 consumer" : "karez wire 1 producer";
  text.append(reinterpret_cast<const char*>(consumer.data()), consumer.size());
  text.append(reinterpret_cast<const char*>(producer.data()), producer.size());
  // HMAC() takes no key for "the key of the last call".
  const std::string key(secret);
  Proof proof;
  unsigned size = 0;
  const unsigned char* made =
      HMAC(EVP_sha256(), key.c_str(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(), proof.data(), &size);
  KAREZ_CHECK(made != nullptr && size == proof.size(), "OpenSSL has SHA-256");
  return proof;
}

bool is_same_proof(const Proof& a, const Proof& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace karez
