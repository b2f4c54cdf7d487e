// ControlClient: a worker's connection to the control server; see control_server.h.
//
// It has two threads: one sends heartbeats, one calls the failure callback. A process that forks
// without exec leaves its connection open in the child: if the parent then ends, it is noticed as
// silent, not at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/cluster/control/control_server.h"
#include "lockstep/comm/membership.h"

namespace lockstep {

struct ControlClientOptions {
  std::string address = {};  // of the server, "host:port"
  int worker = -1;           // -1: any that is free
  int workers = 0;           // 0: as many as the server expects
  std::string job = "lockstep";
  std::string secret = {};
  TlsFiles tls = {};
  // For people, in messages; empty: "host:pid 4711".
  std::string identity = {};
  // How long to try to reach the server and wait for the other workers.
  std::chrono::milliseconds join_timeout{300'000};
  std::string version = control_version();
};

struct ControlMember {
  std::string identity;
  std::string address;
};

// Add the offset to this process's monotonic clock (steady_clock) to get the server's.
struct ClockOffset {
  std::chrono::nanoseconds offset{0};
  std::chrono::nanoseconds round_trip{0};  // the offset is off by at most half of it; 0: unknown
};

class ControlClient final : public Membership {
 public:
  // Joins: returns when all workers have. CommError where that takes longer than the timeout,
  // UsageError where the server turns this worker away.
  explicit ControlClient(ControlClientOptions options);
  // Leaves.
  ~ControlClient() override;
  ControlClient(const ControlClient&) = delete;
  ControlClient& operator=(const ControlClient&) = delete;

  int worker() const override;
  int workers() const override;
  std::uint64_t generation() const override;
  Store& store() override;
  std::string address() const override;
  void on_failure(std::function<void(const Failure&)> f) override;
  void on_heartbeat(std::function<WorkerProgress()> f) override;
  void report_failure(const Failure& failure) override;
  OnFailure policy() const override;
  bool goes_on() const override;
  int newcomers() const override;
  void admit() override;
  void rejoin(std::chrono::milliseconds timeout) override;
  // The server answers for the generation that this worker is in. It keeps no record.
  bool commit(const std::string& key, std::string_view value) override;

  std::vector<ControlMember> members() const;
  // Returns when all workers have called it with this name. CommError, naming those that are
  // missing and what each of them does, after the timeout.
  void barrier(const std::string& name, std::chrono::milliseconds timeout);
  // What this worker does, for messages about it: "step 12: all_reduce". While it is "planning...",
  // "validating..." or "saving...", others may wait for as long as it takes.
  void announce(const std::string& activity);
  // The step that this worker is in, and whether it only waits for others.
  void progress(std::uint64_t step, bool waiting_for_others);
  // Tells the server that this worker goes, which is no failure. All later calls fail.
  void leave();
  ClockOffset clock_offset() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
