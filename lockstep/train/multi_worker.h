// MultiWorkerMirroredStrategy: one model on the devices of several processes, on one host or many.
// Every worker runs the same program; how it was started says which one it is (resolvers.h).
//
//   ls::MultiWorkerMirroredStrategy strategy;
//   model.compile({.strategy = strategy, .optimizer = ls::Adam(), .loss = …});
//
// All workers call fit, evaluate, predict, save and the functions of a strategy, in the same order.
// The chief, worker 0, writes files and shows progress.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/cluster/cluster_resolver.h"
#include "lockstep/cluster/tls_files.h"
#include "lockstep/comm/worker_links.h"
#include "lockstep/train/strategy.h"

namespace lockstep {

struct MultiWorkerOptions {
  // Finds this process's place in the job; none: default_resolver(), which knows the launchers.
  std::shared_ptr<const ClusterResolver> resolver = {};
  // Of this worker, one replica each: "cpu:0", "cpu:1" split its cores. None: its share of the GPUs
  // of its host; without GPUs, one replica on its share of the cores.
  std::vector<std::string> devices = {};
  // Where no devices are named: how many replicas this worker has, each on a GPU of its share, or
  // on its part of the cores. 0: one for each GPU of its share, or one.
  int replicas = 0;
  // What carries bytes between the workers.
  Transport transport = Transport::Auto;
  // As in MirroredOptions.
  Balance balance = Balance::Even;
  BucketSizes buckets = {};
  std::int64_t check_replicas_every = 0;
  CudaKernelOptions cuda = {};
  // For trying things out on few GPUs: workers may share one (WorldOptions::share_gpus).
  bool share_gpus = false;
  // How long a replica waits for another before it fails.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  // What the others do when a worker has failed; none: what LOCKSTEP_ON_FAILURE or the launcher
  // says, else all stop. In fit, the others go on from a copy of the state in their own memory
  // (FitOptions::copy_state_every); everything else ends with an error.
  std::optional<OnFailure> on_failure = {};
  // After how long a silent worker counts as failed, and after how long one that makes no progress
  // while others wait for it. They are the chief's, unless a launcher serves the control plane.
  std::chrono::milliseconds heartbeat_timeout = std::chrono::seconds(5);
  std::chrono::milliseconds progress_timeout = std::chrono::seconds(60);
  // Who takes part shows a certificate of this authority, and the control plane or etcd is
  // encrypted; gradients are not. None: what LOCKSTEP_TLS_CERT, LOCKSTEP_TLS_KEY and
  // LOCKSTEP_TLS_CA name, if they are set.
  TlsFiles tls = {};
  // Ports that this worker listens on for the others (Gloo, heartbeats beside etcd). None: those of
  // LOCKSTEP_PORT_RANGE ("29500-29600") if it is set, else any.
  PortRange ports = {};
  // How long workers wait for one another at the start.
  std::chrono::milliseconds join_timeout = std::chrono::minutes(5);
};

struct MultiWorkerMirroredStrategy : Strategy {
  // Collective: returns when all workers have made theirs. One per process.
  explicit MultiWorkerMirroredStrategy(MultiWorkerOptions options = {});
};

}  // namespace lockstep
