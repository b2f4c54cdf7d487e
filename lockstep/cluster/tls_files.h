// TlsFiles: by what a process shows that it belongs to a job, and how it checks that others do.
#pragma once

#include <string>

namespace lockstep {

// PEM files. Empty: no TLS.
struct TlsFiles {
  std::string certificate = {};
  std::string key = {};
  std::string authority = {};  // that signed the certificates of both sides

  bool empty() const { return certificate.empty() && key.empty() && authority.empty(); }
};

// The environment variables that name them to the workers of a job.
inline constexpr const char* kTlsCertificateVariable = "LOCKSTEP_TLS_CERT";
inline constexpr const char* kTlsKeyVariable = "LOCKSTEP_TLS_KEY";
inline constexpr const char* kTlsAuthorityVariable = "LOCKSTEP_TLS_CA";

}  // namespace lockstep
