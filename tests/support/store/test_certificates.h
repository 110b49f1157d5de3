// Certificates for tests of TLS, made anew for each, so that no private key lies in a repository.
//
// Thread: one. Owns: the files.
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <memory>
#include <string>

#include "base/check.h"
#include "support/store/temporary_folder.h"

namespace karez::test {

class TestCertificates {
 public:
  TestCertificates() {
    write("key.pem", [&](FILE* file) {
      return PEM_write_PrivateKey(file, key_.get(), nullptr, nullptr, 0, nullptr, nullptr);
    });
    const Certificate ca = make("ca.pem", "a CA", "", kYear, nullptr);
    make("other_ca.pem", "another CA", "", kYear, nullptr);
    make("server.pem", "a server", "IP:127.0.0.1,DNS:pool.test", kYear, ca.get());
    make("expired.pem", "a server", "IP:127.0.0.1", -1, ca.get());
    make("client.pem", "a client", "", kYear, ca.get());
  }

  // ca, other_ca, server (made out to 127.0.0.1 and pool.test), expired, client; key: of all.
  std::string file(const std::string& name) const { return folder_.path() + "/" + name + ".pem"; }

 private:
  template <auto release>
  struct Free {
    void operator()(auto* one) const { release(one); }
  };
  using Certificate = std::unique_ptr<X509, Free<X509_free>>;
  static constexpr long kYear = 365L * 86'400;

  template <typename Writer>
  void write(const std::string& name, Writer writer) {
    FILE* file = std::fopen((folder_.path() + "/" + name).c_str(), "w");
    KAREZ_CHECK(file != nullptr && writer(file) == 1 && std::fclose(file) == 0,
                "files are written");
  }
  static void extend(X509* certificate, X509V3_CTX* context, int kind, const char* value) {
    X509_EXTENSION* made = X509V3_EXT_conf_nid(nullptr, context, kind, value);
    KAREZ_CHECK(made != nullptr && X509_add_ext(certificate, made, -1) == 1,
                "an extension is made");
    X509_EXTENSION_free(made);
  }
  // issuer: null: itself, as a CA.
  Certificate make(const std::string& file_name, const char* name, const char* hosts, long seconds,
                   X509* issuer) {
    Certificate made(X509_new());
    X509_set_version(made.get(), 2);
    ASN1_INTEGER_set(X509_get_serialNumber(made.get()), ++serial_);
    X509_gmtime_adj(X509_getm_notBefore(made.get()), -kYear);
    X509_gmtime_adj(X509_getm_notAfter(made.get()), seconds);
    X509_set_pubkey(made.get(), key_.get());
    X509_NAME_add_entry_by_txt(X509_get_subject_name(made.get()), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name), -1, -1, 0);
    X509* signer = issuer == nullptr ? made.get() : issuer;
    X509_set_issuer_name(made.get(), X509_get_subject_name(signer));
    X509V3_CTX context;
    X509V3_set_ctx(&context, signer, made.get(), nullptr, nullptr, 0);
    extend(made.get(), &context, NID_basic_constraints,
           issuer == nullptr ? "critical,CA:TRUE" : "CA:FALSE");
    if (*hosts != '\0') {
      extend(made.get(), &context, NID_subject_alt_name, hosts);
    }
    KAREZ_CHECK(X509_sign(made.get(), key_.get(), EVP_sha256()) > 0, "a certificate is signed");
    write(file_name, [&](FILE* file) { return PEM_write_X509(file, made.get()); });
    return made;
  }

  TemporaryFolder folder_;
  std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>> key_{EVP_EC_gen("P-256")};
  long serial_ = 0;
};

}  // namespace karez::test
