// The inside of ControlClient: client_join.cpp connects and joins, control_client.cpp calls the
// server, client_threads.cpp sends heartbeats.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "lockstep/cluster/control/control_client.h"
#include "lockstep/cluster/control/control_stream.h"
#include "lockstep/cluster/control/reach.h"
#include "lockstep/cluster/failure_caller.h"

namespace lockstep {

class ControlClient::Impl final : public Store {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;

  explicit Impl(ControlClientOptions options);
  ~Impl() override;

  void set(const std::string& key, std::string_view value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  void barrier(const std::string& name, std::chrono::milliseconds timeout);
  void rejoin(std::chrono::milliseconds timeout);
  void leave();
  void admit();
  void on_failure(std::function<void(const Failure&)> f) { caller_.set(std::move(f)); }
  void report_failure(const Failure& failure);
  void announce(const std::string& activity);
  void progress(std::uint64_t step, bool waiting);
  void on_heartbeat(std::function<WorkerProgress()> f);
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
  ClockOffset clock;
  OnFailure policy = OnFailure::Stop;
  bool goes_on = false;  // after the failure
  int newcomers = 0;

 private:
  void join();
  void open_stream(const Reached& reached, std::chrono::milliseconds left);
  void close_stream();
  [[noreturn]] void fail_to_join(Time begin, const std::string& last) const;

  void received(const control::ToWorker& message);
  void answer(const control::Challenge& challenge);
  void check_server(const control::Welcome& welcome);
  void become_member(const control::Members& message);
  void note_clock(const control::HeartbeatReply& reply, Time now);
  // Ends all use of the connection; a failure unless this worker wanted it.
  void end_connection(const std::string& why);
  void note_failure(const Failure& failure);
  // Where workers are on several hosts: ", on the host of worker 0 (host1:pid 4711)".
  std::string place_of_server() const;

  // Sends a request with its id, and waits for the reply.
  using Fill = std::function<void(control::ToServer&, std::uint64_t id)>;
  std::string call(std::chrono::milliseconds timeout, const std::string& what, const Fill& fill);
  void check_open(const std::string& what) const;

  void beat_loop();
  void beat(Time now);

  const ControlClientOptions options_;
  Address server_;
  std::string server_host_;  // in digits
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::shared_ptr<ControlStream> stream_;
  control::Hello hello_;
  std::string server_nonce_;
  bool welcome_ = false;
  bool left_ = false;
  bool stopping_ = false;
  std::optional<std::string> over_;  // why the connection is of no use any more
  std::optional<Failure> refusal_;
  std::uint64_t last_call_ = 0;
  std::map<std::uint64_t, std::optional<control::Reply>> calls_;

  std::chrono::milliseconds heartbeat_timeout_{5000};
  Time heard_{};
  Time next_beat_{};
  Time last_beat_{};
  std::string activity_;
  std::uint64_t step_ = 0;
  bool waiting_ = false;
  int waiting_for_ = -1;
  std::uint64_t messages_ = 0;
  std::function<WorkerProgress()> ask_;  // called with the mutex held

  std::optional<Failure> failure_;
  FailureCaller caller_;

  std::thread beat_thread_;
};

}  // namespace lockstep
