// What a client of TLS needs besides a connection: whom it trusts, and who it is.
//
// TLS 1.2 and later. The other side's certificate is always verified; there is no way to leave that
// out. Thread: a context may be used by several threads. Owns: OpenSSL's context.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"

struct ssl_ctx_st;

namespace karez {

// PEM files; empty: none.
struct TlsFiles {
  std::string ca;    // whom to trust; empty: whom the system trusts
  std::string cert;  // this client's certificate, and those that lead to its CA
  std::string key;   // of cert, without a pass phrase; both or none

  bool is_empty() const { return ca.empty() && cert.empty() && key.empty(); }
};

struct FreeTlsContext {
  void operator()(ssl_ctx_st* context) const;
};
using TlsContext = std::unique_ptr<ssl_ctx_st, FreeTlsContext>;

// Reads the files. Fails: kInvalidArgument: "ca FILE: why", with cert and key for the others.
Expected<TlsContext> make_tls_context(const TlsFiles& files);

// What OpenSSL has noted first for this thread, or nothing; and forgets it.
std::string take_tls_error();

}  // namespace karez
