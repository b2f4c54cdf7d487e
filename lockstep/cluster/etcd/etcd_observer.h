// EtcdObserver: what happens to the members of a job that an etcd keeps, for a launcher, which is
// no member itself.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/cluster/control/control_event.h"
#include "lockstep/cluster/tls_files.h"
#include "lockstep/comm/membership.h"

namespace lockstep {

struct EtcdObserverOptions {
  std::vector<std::string> endpoints = {};  // "host:port"
  std::string job = "lockstep";
  TlsFiles tls = {};
  OnFailure on_failure = OnFailure::Stop;  // of the job
  // Joined, Left and Failed of workers, by their seats; from a thread of the observer's own.
  std::function<void(const ControlEvent&)> on_event = {};
};

class EtcdObserver {
 public:
  // Events from before this are not told: a run before this one may have left them. Where etcd does
  // not answer, it is tried again for as long as this object lives.
  explicit EtcdObserver(EtcdObserverOptions options);
  ~EtcdObserver();
  EtcdObserver(const EtcdObserver&) = delete;
  EtcdObserver& operator=(const EtcdObserver&) = delete;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
