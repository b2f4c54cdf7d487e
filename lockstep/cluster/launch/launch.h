// Starts the workers of a job, here or over ssh, and watches over them until all have ended.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "lockstep/cluster/launch/control.h"
#include "lockstep/cluster/launch/hosts.h"
#include "lockstep/cluster/launch/process.h"
#include "lockstep/cluster/launch/remote.h"
#include "lockstep/cluster/launch/screen.h"

namespace lockstep::launch {

struct LaunchOptions {
  std::vector<Seat> seats;  // seat_workers
  std::vector<std::string> program;
  std::string folder;                    // the working directory, on other hosts, too
  std::vector<std::string> environment;  // "NAME=VALUE", for workers on this host
  Variables variables = {};              // in addition, on all hosts
  std::vector<std::string> ssh = {"ssh"};
  int cores_per_worker = 0;  // 0: the host's cores, divided evenly
  std::string bind = {};     // where the control plane listens; empty: control_bind_address
  PortRange ports = {};
  // How long workers have to end after a signal or after the failure of another.
  std::chrono::milliseconds grace = std::chrono::seconds(25);
  // Whether workers go on if the launcher is killed; otherwise they end with it.
  bool outlived = false;
  // When a worker that takes part in the job fails: Restart starts it again, Shrink lets the others
  // go on without it.
  OnFailure on_failure = OnFailure::Stop;
  // After how long a silent worker counts as failed.
  std::chrono::milliseconds heartbeat_timeout = std::chrono::seconds(5);
  std::string log_folder = {};  // empty: no logs
  StartControl start_control = reserve_control_port;
};

// A worker that failed while the job went on.
struct LostWorker {
  int worker = -1;
  std::string cause = {};
};

struct JobResult {
  std::vector<End> ends;              // by worker
  int first_failure = -1;             // the worker that failed first; -1: none
  std::string cause = {};             // how, in a sentence
  int stopped_by = 0;                 // the signal that the launcher passed on; 0: none
  int exit_code = 0;                  // of the first worker that failed; 0: all ended well
  std::vector<LostWorker> lost = {};  // in their order
};

// Runs the job. SIGINT, SIGTERM, SIGHUP and SIGUSR1 go to all workers once; a second SIGINT or
// SIGTERM kills them. Call it from the main thread, before other threads have started: they would
// take signals away. UsageError if a program, folder or host is not there, before or while the
// workers start; those that have started are then killed.
JobResult run_job(const LaunchOptions& options, const Sinks& sinks);

}  // namespace lockstep::launch
