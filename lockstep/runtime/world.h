// World: all ranks of a job, and those of this process with their devices, threads and
// communicators. Strategies make it; sessions run on it. A rank is one device with one executor; a
// worker is a process. Nothing outside comm and the runtime asks whether another rank is a thread
// of this process or another process.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/membership.h"
#include "lockstep/comm/worker_links.h"
#include "lockstep/device/device.h"
#include "lockstep/distribute/buckets.h"
#include "lockstep/kernels/kernel.h"
#include "lockstep/profile/recorder.h"
#include "lockstep/runtime/rank_devices.h"

namespace lockstep {

struct FitMemory;

struct WorldOptions {
  // Of the ranks of this process: "cpu:0", "cpu:1", or "cuda:0", "cuda:1", or "cuda:0/0",
  // "cuda:0/1"; none: one rank on all cores.
  std::vector<std::string> devices = {};
  // Into how many logical devices the cores are split; 0: as many as the names need.
  int logical_cpus = 0;
  std::vector<int> cores = {};  // which of them; empty: all that this process may use
  BucketSizes buckets = {};     // of gradients; 0: chosen by measuring
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  CudaKernelOptions cuda = {};  // of GPUs
  // For trying things out: workers may share a GPU, which makes them slow. NCCL has to believe that
  // they are on different hosts: NCCL_HOSTID must be another one for each.
  bool share_gpus = false;
  // Of a job of several workers. All make their worlds in the same order.
  std::shared_ptr<WorkerLinks> links = {};
  // Tells this worker that another one has failed; none: only what the links notice is known.
  std::shared_ptr<Membership> membership = {};
  // Makes the links of a later generation; none: there is none.
  std::function<std::shared_ptr<WorkerLinks>()> make_links = {};
};

class World {
 public:
  // Each local rank gets a thread, pinned to its device's cores, except the first one where its
  // device is a single core: the caller's thread runs that rank, and is pinned while it does.
  explicit World(const WorldOptions& options);
  // One rank, run by whichever thread asks for it, on the caller's device, or, where there is none,
  // on all cores.
  explicit World(Device* device);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int size() const { return static_cast<int>(names_.size()); }  // ranks of the job
  int local_size() const { return static_cast<int>(devices_.size()); }
  // The number, in the job, of a local rank. All that follows counts local ranks from 0.
  int rank(int local) const { return first_rank_ + local; }
  int workers() const { return workers_; }
  // How many ranks a worker has.
  int ranks_of(int worker) const {
    return workers_ == 1 ? size() : ranks_of_worker_[static_cast<std::size_t>(worker)];
  }
  int worker() const { return worker_; }
  // What connects the workers: "shared memory"; empty where one is alone.
  std::string transport() const { return links_ != nullptr ? links_->transport() : ""; }
  bool chief() const { return worker_ == 0; }
  // Of a job whose workers hear of one another; null otherwise.
  const std::shared_ptr<Membership>& membership() const { return membership_; }
  // Of the members: 1 where there is no membership.
  std::uint64_t generation() const {
    return membership_ == nullptr ? 1 : membership_->generation();
  }

  // Whether ranks have threads of their own, apart from what the caller does.
  bool threaded() const { return threaded_; }
  Device& device(int local) const { return *devices_[static_cast<std::size_t>(local)]; }
  const std::vector<std::string>& names() const { return names_; }  // of all ranks
  std::vector<std::string> local_names() const;
  // Host memory that the devices copy from without help; null: any host memory is as good.
  Device* batch_memory() const;
  // What computes on a rank; made when it is first asked for.
  const KernelLibrary& kernels(int local);
  // Of a stream of the plan; none where the rank is alone in the world.
  Communicator* communicator(int local, int stream) const;
  // Sizes that were asked for or measured; measured once, on the first rank, and agreed by all.
  const BucketSizes& buckets();
  // What an all-reduce of all ranks costs, if it was measured to choose them.
  const std::optional<LinkSpeed>& link() const { return link_; }

  // Every worker gives some bytes; all get all of them, by worker. Collective: every worker calls
  // it at the same place of the program.
  std::vector<std::string> exchange(std::string_view mine);

  // Calls f on the first worker; an exception reaches all. Collective.
  void on_chief(const std::function<void()>& f);
  // Calls f on every worker; all get what each returned, by worker. An exception of one reaches all
  // and names the worker. Collective.
  std::vector<std::string> gather(const std::function<std::string()>& f);
  // The same for another thread than the one that trains, one call at a time, while that one goes
  // on; a worker may take as long as it needs. open_background() comes first: collective, and by
  // the thread that trains.
  void open_background();
  std::vector<std::string> gather_in_background(const std::function<std::string()>& f);
  // For the others to know while they wait for this worker: the step that it is in.
  void set_step(std::int64_t step) { step_ = step; }
  // What the others know. From any thread.
  WorkerProgress progress() const;

  // Whether the job goes on when a worker has failed.
  bool survives() const {
    return make_links_ && membership_ != nullptr && membership_->policy() != OnFailure::Stop;
  }
  // Whether an exception came from the failure of another worker without which the job goes on: a
  // world is then of no use until it is renewed. Waits for the membership to hear of the failure.
  bool goes_on_after(const std::exception_ptr& error);
  // The failure that ended the generation.
  std::string cause() const;
  // Where workers wait to take part, begins a generation with them: this one ends as by a failure,
  // after which the job goes on. Collective.
  void admit_newcomers();
  // Meets the workers of the next generation, with new groups: numbers, names and communicators are
  // other ones. Nothing that was compiled for this world may be left. Collective.
  void renew();
  // Of the room train, for as long as the world lives (survival.h).
  std::shared_ptr<FitMemory> fit_memory;
  // Whether this worker came to a job that was already training, and is not where the others are.
  // Its only collective call is meet_at, with which the others tell it where they are.
  bool newcomer() const { return newcomer_; }
  // A text of the first worker's that all keep, and that newcomers get. Collective.
  void agree_on_note(std::string_view mine) { note_ = exchange(mine).front(); }
  const std::string& note() const { return note_; }
  // As exchange, for newcomers, too.
  std::vector<std::string> meet_at(std::string_view mine);
  // Ends being a newcomer.
  void arrive() { newcomer_ = false; }

  // Tells the other workers about an exception that ends this one's part in the job, unless all of
  // them got it from a call above. Without this they would wait for it.
  void report(const std::exception_ptr& error) noexcept;

  // Calls f(local rank) on the thread of every local rank and returns when all have returned, on
  // every worker. An exception of one rank stops the others where they wait for it, and reaches the
  // callers on all workers, of the same kind, with the rank's name; what the others then ran into
  // is dropped. One call at a time; others wait.
  //
  // Afterwards `tracks`, one per local rank, show what each did besides f: the time before it began
  // and after the last one ended, on any worker, is the host's; from its own end to the last one's
  // it waited.
  template <class F>
  void run(F&& f, std::span<Track* const> tracks = {}) {
    const auto call = [](const void* f, int local) {
      (*static_cast<const std::remove_reference_t<F>*>(f))(local);
    };
    run_job({&f, call}, tracks, {});
  }
  // The same; every worker then gives the bytes that tell() returns, and all get all of them, by
  // worker. Costs no more messages than run.
  template <class F>
  std::vector<std::string> run_and_exchange(F&& f, std::span<Track* const> tracks,
                                            const std::function<std::string()>& tell) {
    const auto call = [](const void* f, int local) {
      (*static_cast<const std::remove_reference_t<F>*>(f))(local);
    };
    return run_job({&f, call}, tracks, tell);
  }

 private:
  friend class ActivityScope;
  struct Job {
    const void* f = nullptr;
    void (*call)(const void* f, int local) = nullptr;
  };
  struct Times {
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;
  };
  void add_devices(RankDevices made);
  void meet();
  void set_ranks_of_workers(std::vector<int> ranks);
  void add_groups();
  void add_group(std::shared_ptr<Group> group);
  // Keeps a new group, which a failure that was heard of meanwhile aborts.
  void keep(std::shared_ptr<Group> group, std::shared_ptr<Group>& place);
  std::unique_ptr<Group> make_control(std::chrono::milliseconds timeout);
  void connect_groups();
  void start_threads();
  void unsubscribe();
  std::vector<std::string> run_job(Job job, std::span<Track* const> tracks,
                                   const std::function<std::string()>& tell);
  void run_locally();
  void account(std::span<Track* const> tracks, std::int64_t told_ns) const;
  void serve(int local);
  void end_threads();
  void call(int local) noexcept;
  // Throws the first error of this job on any worker; afterwards ranks can run again. If there was
  // none, what the workers tell.
  std::vector<std::string> rethrow_first(std::span<Track* const> tracks,
                                         const std::function<std::string()>& tell);
  // Throws an error that all workers throw.
  [[noreturn]] void throw_agreed(const Failure& failure);
  bool is_agreed(const std::string& message) const;
  void abort_all(const Failure& failure);
  void abort_groups(const Failure& failure);
  void reset_gpu_groups();
  void expect_met() const;
  BucketSizes measured_buckets();
  // The first rank's sizes are everybody's: others may have measured something else.
  BucketSizes agreed(const BucketSizes& mine);

  std::exception_ptr no_devices_;  // why this worker has none, until all know
  bool threaded_ = false;
  bool caller_runs_first_ = false;
  std::vector<std::unique_ptr<Device>> owned_;
  std::vector<Device*> devices_;
  std::vector<std::string> names_;
  int first_rank_ = 0;
  int workers_ = 1;
  int worker_ = 0;
  std::mutex kernels_mutex_;
  std::vector<std::unique_ptr<KernelLibrary>> kernels_;  // of GPUs, by local rank
  CudaKernelOptions cuda_;
  std::shared_ptr<WorkerLinks> links_;
  std::shared_ptr<Membership> membership_;
  std::function<std::shared_ptr<WorkerLinks>()> make_links_;
  std::chrono::milliseconds timeout_{0};
  bool share_gpus_ = false;
  bool newcomer_ = false;
  std::string note_;
  std::atomic<std::int64_t> step_ = 0;
  std::atomic<const char*> activity_ = nullptr;  // what it does besides steps
  std::string agreed_;  // the message of the last error that all workers threw
  // Guards the next ones: the membership's threads abort groups and ask whether they wait.
  mutable std::mutex groups_mutex_;
  std::condition_variable failed_;
  std::optional<Failure> failure_;     // of another worker, which ended this generation
  std::shared_ptr<Group> control_;     // a rank per worker; none where one is alone
  std::shared_ptr<Group> background_;  // the same for gather_in_background, once it is open
  std::vector<std::shared_ptr<Group>>
      groups_;                        // one per stream; the last one is that of all further streams
  std::vector<int> ranks_of_worker_;  // how many each has, where there are several
  BucketSizes asked_buckets_;
  std::mutex buckets_mutex_;
  std::optional<BucketSizes> buckets_;  // once they are known
  std::optional<LinkSpeed> link_;       // measured to choose them

  std::mutex one_at_a_time_;
  Job job_;
  std::atomic<std::uint32_t> round_ = 0;   // changes when there is a job, or nothing more to come
  std::atomic<std::int32_t> running_ = 0;  // ranks that have not returned yet
  std::atomic<int> first_failed_ = -1;
  std::atomic<bool> closing_ = false;
  std::vector<std::exception_ptr> errors_;
  std::int64_t asked_ns_ = 0;
  std::vector<Times> times_;
  std::vector<std::thread> threads_;
};

// While it lives, the other workers know that this one does something that may take long:
// "planning", "validating" or "saving".
class ActivityScope {
 public:
  ActivityScope(World& world, const char* activity)
      : world_(world), before_(world.activity_.exchange(activity)) {}
  ~ActivityScope() { world_.activity_ = before_; }
  ActivityScope(const ActivityScope&) = delete;
  ActivityScope& operator=(const ActivityScope&) = delete;

 private:
  World& world_;
  const char* before_;
};

// One rank on the first GPU, or, where there is none, on all cores.
std::shared_ptr<World> default_world();

}  // namespace lockstep
