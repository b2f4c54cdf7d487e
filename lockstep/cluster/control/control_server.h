// ControlServer: where the workers of a job meet. It knows who takes part, keeps the store, notices
// who has ended, fallen silent or stopped, and tells all workers the same first cause. The launcher
// or the chief worker runs it; it is not a worker itself.
//
// Who may connect: a worker proves that it knows the job's secret (proof.h). The secret is never
// sent, but it does not encrypt: others on the network can read the store. With TLS, both sides
// show certificates of the same authority, and nobody else reads or changes anything; a secret is
// then optional. Without either, only programs of this machine can connect.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/cluster/control/control_event.h"
#include "lockstep/comm/failure.h"
#include "lockstep/comm/membership.h"

namespace lockstep {

// PEM files. Empty: no TLS.
struct TlsFiles {
  std::string certificate = {};
  std::string key = {};
  std::string authority = {};  // that signed the certificates of both sides
};

// The versions of the protocol and of the program: a server accepts workers with its own only.
std::string control_version();

struct ControlServerOptions {
  // The interface and the port: "10.0.0.1:4711", "[::1]:4711"; port 0: any free one;
  // "10.0.0.1:4711-4720": the first free one of these. All interfaces: "0.0.0.0" or "[::]".
  std::string address = "127.0.0.1:0";
  int workers = 1;
  // Workers of another job are turned away even if they know the secret.
  std::string job = "lockstep";
  std::string secret = {};
  TlsFiles tls = {};
  // A worker that has sent nothing for so long has failed.
  std::chrono::milliseconds heartbeat_timeout{5000};
  // The longest that a worker waits for the others when it joins.
  std::chrono::milliseconds join_timeout{300'000};
  // Workers that make no progress while others wait for so long have failed.
  std::chrono::milliseconds progress_timeout{60'000};
  // What comes after a failure. Where it is not Stop, the server begins the next generation itself.
  OnFailure on_failure = OnFailure::Stop;
  // Called from the server's thread, one event at a time; must return soon.
  std::function<void(const ControlEvent&)> on_event = {};
  std::string version = control_version();
};

class ControlServer {
 public:
  // Serves until it is destroyed. UsageError where the address is none, is taken, or is open to
  // others without a secret or TLS.
  explicit ControlServer(ControlServerOptions options);
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  int port() const;
  // In digits, for workers: "127.0.0.1:4711".
  std::string address() const;

  // Begins the next generation: worker members[i] of the present one becomes worker i, and a
  // newcomer where members[i] is -1 or has ended. Workers that are not named are turned away. The
  // generation is complete when all of them have called rejoin() or joined.
  void new_generation(const std::vector<int>& members);

  std::uint64_t generation() const;
  // Of the present generation.
  std::optional<Failure> failure() const;
  // How many connections and messages were turned away.
  std::uint64_t refused() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
