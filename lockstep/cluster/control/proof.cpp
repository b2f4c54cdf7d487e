#include "lockstep/cluster/control/proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <array>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// Fields with their lengths, so that no two subjects give the same bytes.
void append_field(std::string& text, std::string_view field) {
  text += std::to_string(field.size()) + ":";
  text += field;
}

}  // namespace

std::string make_nonce() {
  std::array<unsigned char, kNonceBytes> bytes;
  if (RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1) {
    fail<InternalError>("the system gives no random numbers, which the handshake needs");
  }
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string prove(std::string_view secret, Prover prover, const ProofSubject& subject) {
  std::string text;
  append_field(text, "lockstep control 1");
  append_field(text, prover == Prover::Worker ? "worker to server" : "server to worker");
  append_field(text, subject.job);
  append_field(text, std::to_string(subject.worker));
  append_field(text, subject.worker_nonce);
  append_field(text, subject.server_nonce);
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes;
  unsigned int size = 0;
  const char* const key = secret.empty() ? "" : secret.data();
  if (HMAC(EVP_sha256(), key, static_cast<int>(secret.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(), bytes.data(),
           &size) == nullptr) {
    fail<InternalError>("OpenSSL computes no HMAC-SHA256, which the handshake needs");
  }
  return {reinterpret_cast<const char*>(bytes.data()), size};
}

bool is_proof(std::string_view proof, std::string_view secret, Prover prover,
              const ProofSubject& subject) {
  const std::string expected = prove(secret, prover, subject);
  return proof.size() == expected.size() &&
         CRYPTO_memcmp(proof.data(), expected.data(), expected.size()) == 0;
}

}  // namespace lockstep
