#include "kv/store/sha256.h"

#include <openssl/evp.h>

#include "base/check.h"

namespace karez {

struct Sha256::Impl {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~Impl() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : impl_(std::make_unique<Impl>()) {
  KAREZ_CHECK(EVP_DigestInit_ex(impl_->context, EVP_sha256(), nullptr) == 1, "OpenSSL has SHA-256");
}

Sha256::~Sha256() = default;

void Sha256::add(std::span<const std::byte> bytes) {
  KAREZ_CHECK(EVP_DigestUpdate(impl_->context, bytes.data(), bytes.size()) == 1,
              "a digest takes any bytes");
}

void Sha256::add_number(std::uint64_t number) {
  std::array<std::byte, sizeof(number)> bytes;
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(number & 0xFF);
    number >>= 8;
  }
  add(bytes);
}

void Sha256::add_text(std::string_view text) {
  add_number(text.size());
  add(std::as_bytes(std::span(text)));
}

Sha256Digest Sha256::finish() {
  Sha256Digest digest;
  KAREZ_CHECK(EVP_DigestFinal_ex(impl_->context, reinterpret_cast<unsigned char*>(digest.data()),
                                 nullptr) == 1,
              "a digest ends once");
  return digest;
}

}  // namespace karez
