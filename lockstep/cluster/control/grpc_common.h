// What the control server and client share of gRPC.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "lockstep/cluster/control/control_server.h"

namespace lockstep {

bool uses_tls(const TlsFiles& tls);
// Of TLS where the files are given; DataError where one cannot be read.
std::shared_ptr<grpc::ServerCredentials> server_credentials(const TlsFiles& tls);
std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const TlsFiles& tls);
// gRPC writes remarks about connections to the terminal, which is not ours to write to.
void silence_grpc();

}  // namespace lockstep
