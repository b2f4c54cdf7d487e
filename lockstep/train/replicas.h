// Replicas: the devices that a model is copied to, each with the thread that runs it, and the
// communicators between them. Strategies make them; sessions run on them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/device/device.h"
#include "lockstep/kernels/kernel.h"
#include "lockstep/profile/recorder.h"
#include "lockstep/strategy/buckets.h"

namespace lockstep {

struct ReplicaOptions {
  // "cpu:0", "cpu:1", or "cuda:0", "cuda:1", or "cuda:0/0", "cuda:0/1"; none: one, of all cores.
  std::vector<std::string> devices = {};
  // Into how many logical devices the cores are split; 0: as many as the highest number named.
  int logical_cpus = 0;
  BucketSizes buckets = {};  // of gradients; 0: chosen by measuring
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  CudaKernelOptions cuda = {};  // of GPUs
};

// Into how many logical devices the cores are split where these are named: one more than the
// highest number; 0 for GPUs. UsageError for names of anything else.
int logical_cpus_for(const std::vector<std::string>& devices);

// What a call of run() took on a replica, on the recorder's clock.
struct ReplicaTimes {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

class Replicas {
 public:
  // A thread for each device, which is kept on the device's cores. Where a device is one core, the
  // caller's own thread runs the first replica, on that core while it does. A GPU that is alone is
  // run by whichever thread asks for it.
  explicit Replicas(const ReplicaOptions& options);
  // One replica, run by whichever thread asks for it, on a device of the caller's, or, where there
  // is none, on all cores.
  explicit Replicas(Device* device);
  ~Replicas();
  Replicas(const Replicas&) = delete;
  Replicas& operator=(const Replicas&) = delete;

  // Whether replicas are kept to their devices' cores, apart from what the caller does.
  bool threaded() const { return kept_; }
  int size() const { return static_cast<int>(devices_.size()); }
  Device& device(int replica) const { return *devices_[static_cast<std::size_t>(replica)]; }
  std::vector<std::string> names() const;
  // Where batches lie best: memory of the host that the devices copy by themselves; null: anywhere.
  Device* batch_memory() const;
  // What computes on a replica; made when it is first asked for.
  const KernelLibrary& kernels(int replica);
  // Of a stream of the plan; none where the replica is alone.
  Communicator* communicator(int replica, int stream) const;
  // Asked-for or measured (once) sizes of buckets.
  const BucketSizes& buckets();

  // Calls f(replica) on every replica's thread and returns when all have returned. An exception of
  // one stops the others where they wait for it, and reaches the caller, of the same kind, with the
  // replica's name; what the others then ran into is dropped. One call at a time; others wait.
  //
  // On `tracks`, one a replica, stands afterwards what each did beside f: before it began and
  // behind the last one to end is the host's time; between its own end and the last one's it
  // waited.
  template <class F>
  void run(F&& f, std::span<Track* const> tracks = {}) {
    const auto call = [](const void* f, int replica) {
      (*static_cast<const std::remove_reference_t<F>*>(f))(replica);
    };
    run_job({&f, call}, tracks);
  }

 private:
  struct Job {
    const void* f = nullptr;
    void (*call)(const void* f, int replica) = nullptr;
  };
  void add_cpus(const std::vector<std::string>& names, int count);
  void add_gpus(const std::vector<std::string>& names);
  void add_groups(const ReplicaOptions& options);
  void start_threads();
  void run_job(Job job, std::span<Track* const> tracks);
  void account(std::span<Track* const> tracks) const;
  void serve(int replica);
  void end_threads();
  void call(int replica) noexcept;
  [[noreturn]] void rethrow(int replica);
  void measure_link();

  bool kept_ = false;
  bool caller_runs_first_ = false;
  std::vector<std::unique_ptr<Device>> owned_;
  std::vector<Device*> devices_;
  std::mutex kernels_mutex_;
  std::vector<std::unique_ptr<KernelLibrary>> kernels_;  // of GPUs, by replica
  CudaKernelOptions cuda_;
  std::vector<std::unique_ptr<Group>> groups_;  // one a stream
  BucketSizes buckets_;
  std::once_flag buckets_known_;

  std::mutex one_at_a_time_;
  Job job_;
  std::atomic<std::uint32_t> round_ = 0;   // changes when there is a job, or nothing more to come
  std::atomic<std::int32_t> running_ = 0;  // replicas that have not returned yet
  std::atomic<int> first_failed_ = -1;
  std::atomic<bool> closing_ = false;
  std::vector<std::exception_ptr> errors_;
  std::int64_t asked_ns_ = 0;
  std::vector<ReplicaTimes> times_;
  std::vector<std::thread> threads_;
};

// One replica on the first GPU, or, where there is none, on all cores.
std::shared_ptr<Replicas> default_replicas();

}  // namespace lockstep
