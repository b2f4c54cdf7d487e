#include "lockstep/cluster/control/grpc_common.h"

#include <grpc/support/log.h>

#include <fstream>
#include <sstream>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::string pem_of(const std::string& file, const char* what) {
  require(!file.empty(), "TLS needs a certificate, its key and an authority; the {} is missing",
          what);
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  if (!stream || text.str().find("-----BEGIN") == std::string::npos) {
    fail<DataError>("{}: cannot read a {} in PEM format", file, what);
  }
  return text.str();
}

}  // namespace

bool uses_tls(const TlsFiles& tls) {
  return !tls.empty();
}

std::shared_ptr<grpc::ServerCredentials> server_credentials(const TlsFiles& tls) {
  if (!uses_tls(tls)) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = pem_of(tls.authority, "authority");
  options.pem_key_cert_pairs.push_back({.private_key = pem_of(tls.key, "key"),
                                        .cert_chain = pem_of(tls.certificate, "certificate")});
  return grpc::SslServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const TlsFiles& tls) {
  if (!uses_tls(tls)) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = pem_of(tls.authority, "authority");
  options.pem_private_key = pem_of(tls.key, "key");
  options.pem_cert_chain = pem_of(tls.certificate, "certificate");
  return grpc::SslCredentials(options);
}

void silence_grpc() {
  gpr_set_log_function([](gpr_log_func_args*) {});
}

}  // namespace lockstep
