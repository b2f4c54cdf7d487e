// How both ends of a control connection prove that they know the job's secret without sending it:
// HMAC-SHA256 over a direction, the job, the worker and a fresh random number (nonce) of each side.
// A proof that was recorded is worthless on another connection, for another job or worker, or in
// the other direction. The secret authenticates; it does not encrypt: whoever sees the traffic
// reads what is stored, and whoever can change packets on their way can take over a connection
// after its handshake. TLS prevents both.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

inline constexpr std::size_t kNonceBytes = 32;

struct ProofSubject {
  std::string_view job;
  int worker = 0;
  std::string_view worker_nonce;
  std::string_view server_nonce;
};

enum class Prover { Worker, Server };

// Random bytes from the system's generator.
std::string make_nonce();
std::string prove(std::string_view secret, Prover prover, const ProofSubject& subject);
// Takes the same time wherever the first difference is.
bool is_proof(std::string_view proof, std::string_view secret, Prover prover,
              const ProofSubject& subject);

}  // namespace lockstep
