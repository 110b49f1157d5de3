#include "kv/store/tls_client.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <cstring>

#include "base/check.h"

namespace karez {
namespace {

tl::unexpected<Status> wrong_file(const char* field, const std::string& file) {
  const std::string why = take_tls_error();
  return fail(StatusCode::kInvalidArgument,
              fmt::format("{} {}: {}", field, file, why.empty() ? "it cannot be read" : why));
}

// OpenSSL's own would ask at the terminal.
int no_pass_phrase(char*, int, int, void*) { return -1; }

}  // namespace

void FreeTlsContext::operator()(ssl_ctx_st* context) const { SSL_CTX_free(context); }

std::string take_tls_error() {
  const unsigned long first = ERR_get_error();
  ERR_clear_error();
  if (first == 0) {
    return {};
  }
  if (ERR_SYSTEM_ERROR(first)) {
    return std::strerror(ERR_GET_REASON(first));
  }
  const char* reason = ERR_reason_error_string(first);
  return reason == nullptr ? fmt::format("error {:x} of OpenSSL", first) : reason;
}

Expected<TlsContext> make_tls_context(const TlsFiles& files) {
  ERR_clear_error();
  TlsContext context(SSL_CTX_new(TLS_client_method()));
  KAREZ_CHECK(context != nullptr && SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION),
              "OpenSSL has TLS");
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(context.get(),
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_default_passwd_cb(context.get(), no_pass_phrase);
  if (files.ca.empty()) {
    if (SSL_CTX_set_default_verify_paths(context.get()) != 1) {
      return wrong_file("ca", "of the system");
    }
  } else if (SSL_CTX_load_verify_locations(context.get(), files.ca.c_str(), nullptr) != 1) {
    return wrong_file("ca", files.ca);
  }
  if (files.cert.empty()) {
    return context;
  }
  if (SSL_CTX_use_certificate_chain_file(context.get(), files.cert.c_str()) != 1) {
    return wrong_file("cert", files.cert);
  }
  if (SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context.get()) != 1) {
    return wrong_file("key", files.key);
  }
  return context;
}

}  // namespace karez
