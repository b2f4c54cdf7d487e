// The inside of EtcdMembership: membership_join.cpp finds a place in a generation,
// membership_view.cpp follows what happens in etcd, membership_lease.cpp keeps the lease,
// membership_progress.cpp watches for a standstill, membership_succession.cpp begins the next
// generation, etcd_membership.cpp has the calls of the user.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "lockstep/cluster/etcd/etcd_client.h"
#include "lockstep/cluster/etcd/etcd_membership.h"
#include "lockstep/cluster/etcd/etcd_records.h"
#include "lockstep/cluster/etcd/heartbeat_ring.h"
#include "lockstep/cluster/failure_caller.h"

namespace lockstep {

class EtcdMembership::Impl final : public Store {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;
  using Lock = std::unique_lock<std::mutex>;

  explicit Impl(EtcdOptions options);
  ~Impl() override;

  void set(const std::string& key, std::string_view value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  bool still_current();
  bool commit(const std::string& key, std::string_view value);
  std::optional<std::string> committed(const std::string& key);
  bool propose(const std::vector<int>& members);
  void rejoin(std::chrono::milliseconds timeout);
  OnFailure policy() const { return options_.on_failure; }
  bool goes_on() const;
  int newcomers() const;
  void admit();
  void succeed(std::chrono::milliseconds timeout);
  void leave();
  void on_failure(std::function<void(const Failure&)> f) { caller_.set(std::move(f)); }
  void on_heartbeat(std::function<WorkerProgress()> f);
  void report_failure(const Failure& failure);
  template <class Read>
  auto read(Read&& read) const {
    const std::lock_guard lock(mutex_);
    return read(*this);
  }

  // Guarded by the lock.
  int worker = -1;
  std::uint64_t generation = 0;  // 0: not a member yet
  std::vector<ControlMember> members;
  std::string address;
  bool came_later = false;

 private:
  // A key as it was last heard of. Values of the store are not kept.
  struct Entry {
    std::string value;
    std::int64_t created = 0;
    std::int64_t modified = 0;
  };
  struct Newest {
    GenerationRecord record;
    std::int64_t revision = 0;
  };
  // A failure that is to be written to etcd, of `generation`.
  struct Report {
    std::uint64_t generation = 0;
    Failure failure;
    FailureCause cause = FailureCause::Reported;
    bool unless_left = false;  // the worker has not said it itself
    // Keys, and the revisions of which the failure follows: where one has changed, there is none.
    std::vector<std::pair<std::string, std::int64_t>> unless_changed = {};
  };
  // What comes after an attempt to become a member: another one at once, or after a change.
  enum class Step { Again, Wait, Member };

  // membership_join.cpp
  void reach_etcd(Time deadline);
  void enter(Time deadline);
  Step take_step(Lock& lock, Time deadline);
  Step enter_open(Lock& lock, const Newest& newest, Time deadline);
  Step enter_formed(Lock& lock, const Newest& newest, Time deadline);
  Step await_formed(Lock& lock, const Newest& newest, int place, Time deadline);
  // `next` without its number.
  bool open_generation(Lock& lock, const std::optional<Newest>& before, GenerationRecord next,
                       Time deadline, bool unless_failed = false);
  GenerationRecord first_generation() const;
  int find_place(const GenerationRecord& record) const;
  bool take_place(Lock& lock, const Newest& newest, int place, Time deadline);
  void write_formed(Lock& lock, const Newest& newest, int place, Time deadline);
  void become_member(const Newest& newest, int place, const FormedRecord& formed);
  void give_up_place(Lock& lock, std::uint64_t number, int place, Time deadline);
  void check_twice(std::uint64_t number, int place);
  bool turn_out(Lock& lock, const Newest& newest, int place, Time deadline);
  bool has_members(const GenerationRecord& record) const;
  void wait_as_newcomer(Lock& lock, Time deadline);
  [[noreturn]] void fail_to_join(Time begin) const;

  // membership_succession.cpp
  std::vector<int> successors() const;
  bool is_left_out() const;
  bool is_begun(const std::vector<int>& places) const;
  // The places of the next generation, and what it knows of the failures before it.
  GenerationRecord successor(const std::vector<int>& places, std::uint64_t step) const;

  // membership_view.cpp
  void watch_loop();
  void read_all(const etcdserverpb::RangeResponse& response);
  void heard(const etcdserverpb::WatchResponse& response);
  void keep(const etcdserverpb::KeyValue& kv);
  // What follows from what was heard. With the lock.
  void evaluate();
  const Entry* find(const std::string& key) const;
  std::optional<Newest> newest() const;
  void await_revision(Lock& lock, std::int64_t revision, Time deadline);
  // Returns when this worker has heard of what the transaction wrote, or of the keys that its
  // `failure` read.
  etcdserverpb::TxnResponse transact(Lock& lock, const etcdserverpb::TxnRequest& request,
                                     Time deadline);
  void note_failure(const Failure& failure);
  void queue_report(Report report);
  void report_loop();
  void write_report(const Report& report);

  // membership_progress.cpp
  std::optional<WorkerProgress> ask() const;
  void progress_loop();
  void look_at_progress(Lock& lock);
  bool tell_standing(Lock& lock);
  void judge(Time now);

  // membership_lease.cpp
  void start_lease(Time deadline);
  void lease_loop();
  void lose(const std::string& why);

  // etcd_membership.cpp
  void stop_threads();
  void say_goodbye(Time deadline);
  void check_member(const std::string& what) const;
  // With what a member of the present generation begins its transactions.
  etcdserverpb::TxnRequest fenced() const;
  Time soon() const;

  const EtcdOptions options_;
  const EtcdKeys keys_;
  const std::string identity_;
  EtcdClient client_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;

  std::map<std::string, Entry> entries_;
  std::int64_t revision_ = 0;  // up to which entries_ are complete; 0: nothing was heard yet
  bool rejoining_ = false;
  bool left_ = false;
  bool stopping_ = false;
  std::optional<std::string> lost_;  // why this worker has no lease any more

  std::int64_t generation_revision_ = 0;  // of the generation's record
  std::int64_t member_revision_ = 0;      // in which the member key was created
  std::int64_t place_revision_ = 0;       // the same, of the generation that is forming
  std::uint64_t given_up_ = 0;            // a generation that did not form in time
  GenerationRecord record_;               // of the present generation
  std::set<int> avoided_;                 // places that others wanted
  std::unique_ptr<HeartbeatRing> ring_;
  // Since when another process has been seen in this worker's place.
  struct Other {
    std::int64_t created = 0;
    Time since{};
  };
  std::optional<Other> other_;

  std::int64_t lease_ = 0;
  std::chrono::seconds ttl_{0};
  Time renewed_{};  // when the last renewal that succeeded was sent

  std::deque<Report> reports_;
  bool reporting_ = false;
  std::optional<Failure> failure_;
  FailureCaller caller_;

  mutable std::mutex ask_mutex_;  // never taken with the other one held
  std::function<WorkerProgress()> ask_;
  // What this worker does, since when, and whether etcd says so.
  struct {
    std::uint64_t generation = 0;
    WorkerProgress progress;
    Time since{};
    bool told = false;
  } standing_;
  // Since when the StillRecord of each worker is known.
  struct Seen {
    std::int64_t modified = 0;
    Time since{};
  };
  std::map<int, Seen> seen_;
  Time last_look_{};

  std::thread lease_thread_;
  std::thread watch_thread_;
  std::thread report_thread_;
  std::thread progress_thread_;
};

}  // namespace lockstep
