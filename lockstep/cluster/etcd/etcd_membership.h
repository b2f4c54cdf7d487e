// EtcdMembership: a membership kept in a real etcd, so that the job depends on no process of its
// own: it survives its chief and its launcher.
//
// Every worker has a lease. A worker that cannot renew it stops itself (on_failure with its own
// number) before the lease can have ended: of two halves of a network, only the one that reaches
// etcd's majority goes on. What must not be done by a worker that was taken for dead goes through
// commit(), which etcd carries out only for a member of the newest generation.
//
// That a worker has ended is noticed at once, over connections between workers
// (heartbeat_ring.h), and by its lease where these do not tell. One that lives without progress is
// named by those who wait for it. All members hear the same first cause: the one that was written
// to etcd first.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/cluster/control/control_client.h"
#include "lockstep/comm/membership.h"
#include "lockstep/comm/port_range.h"

namespace lockstep {

struct EtcdOptions {
  std::vector<std::string> endpoints = {};  // "host:port"; see parse_etcd_address
  // Jobs of different names do not see each other. One run at a time may have a name; the next one
  // goes on with its commits.
  std::string job = "lockstep";
  int worker = -1;  // -1: any that is free
  int workers = 0;  // of the first generation
  // Mixed into what workers prove to each other; etcd itself is protected by `tls`.
  std::string secret = {};
  TlsFiles tls = {};
  PortRange ports = {};  // that a worker listens on for its neighbour's heartbeats
  // For people, in messages; empty: "host:pid 4711".
  std::string identity = {};
  // A worker that has sent nothing to its neighbour for so long has failed.
  std::chrono::milliseconds heartbeat_timeout{5000};
  // After how long a worker is named that is alive without progress while others wait for it.
  std::chrono::milliseconds progress_timeout{60'000};
  // A worker that has not renewed its lease for so long is no member any more. Whole seconds, at
  // least 2; etcd may make it longer.
  std::chrono::seconds lease_timeout{10};
  // What comes after a failure; the members begin the next generation themselves.
  OnFailure on_failure = OnFailure::Stop;
  // How long to try to reach etcd and wait for the other workers.
  std::chrono::milliseconds join_timeout{300'000};
};

class EtcdMembership final : public Membership {
 public:
  // Joins: returns when all workers have. CommError where that takes longer than the timeout,
  // UsageError where another process already is this worker.
  explicit EtcdMembership(EtcdOptions options);
  // Leaves.
  ~EtcdMembership() override;
  EtcdMembership(const EtcdMembership&) = delete;
  EtcdMembership& operator=(const EtcdMembership&) = delete;

  int worker() const override;
  int workers() const override;
  std::uint64_t generation() const override;
  Store& store() override;
  std::string address() const override;
  bool came_later() const override;
  void on_failure(std::function<void(const Failure&)> f) override;
  void on_heartbeat(std::function<WorkerProgress()> f) override;
  void report_failure(const Failure& failure) override;
  OnFailure policy() const override;
  bool goes_on() const override;
  int newcomers() const override;
  void admit() override;
  // By the policy, this begins the next generation, unless another worker has; with Stop, it only
  // waits for one.
  void rejoin(std::chrono::milliseconds timeout) override;

  std::vector<ControlMember> members() const;

  // Asks etcd whether this worker is a member of the newest generation. Where it is false, it stays
  // false until this worker has rejoined. CommError where etcd does not answer.
  bool still_current();
  // Writes a value that outlives generations and runs of the job, if this worker is a member of the
  // newest generation: both in one step of etcd. CommError where etcd does not answer: it may then
  // have been written or not.
  bool commit(const std::string& key, std::string_view value) override;
  // What was written last, if anything.
  std::optional<std::string> committed(const std::string& key) override;

  // Begins the next generation: worker members[i] of the present one becomes worker i, and a
  // newcomer where members[i] is -1. False where another worker has begun one before: that one
  // counts. Does not rejoin.
  bool propose(const std::vector<int>& members);
  // propose, then rejoin.
  void rejoin(const std::vector<int>& members, std::chrono::milliseconds timeout);
  // Tells the others that this worker goes, which is no failure. All later calls fail.
  void leave();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
