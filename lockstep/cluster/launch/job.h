// Job: the workers of one launch, and the loop that reads their output, passes signals on and ends
// them together. One thread; everything is an event of one epoll.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/cluster/launch/cores.h"
#include "lockstep/cluster/launch/guard.h"
#include "lockstep/cluster/launch/launch.h"
#include "lockstep/cluster/launch/reports.h"
#include "lockstep/cluster/launch/signals.h"
#include "lockstep/cluster/launch/worker.h"

namespace lockstep::launch {

class Job {
 public:
  Job(const LaunchOptions& options, const Sinks& sinks);
  // Kills what still runs.
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  void start();
  JobResult run();

 private:
  using Clock = std::chrono::steady_clock;
  enum class Phase {
    Running,
    Stopping,   // a signal was passed on
    Failing,    // a worker has failed, and the others are to end
    Killing,    // they did not end in time, or somebody is impatient
    Abandoning  // nor did ssh, once its input was closed
  };

  void add_worker(const Seat& seat);
  LaunchedWorker::Parts start_worker(const Seat& seat);
  Process start_here(const Seat& seat, Variables variables);
  Process start_over_ssh(const Seat& seat, Variables variables, Descriptor& input);
  Descriptor open_log(int worker) const;
  void watch(int descriptor, std::uint64_t event);

  void handle(std::uint64_t event);
  void worker_ended(LaunchedWorker& worker);
  void failed_first(int worker, const std::string& cause, int exit_code);
  bool as_asked(const End& end) const;
  void signal_came(int signal);
  void heard(const ControlReport& report);
  // What is known of a worker besides its process.
  struct Part {
    bool joined = false;     // the control plane will tell how it ends
    bool took_part = false;  // it has joined since it was started
    bool lost = false;       // the job goes on without this process
    bool undecided = false;  // its process has ended, and the control plane has not told how
    std::optional<Clock::time_point> decide_by = {};  // by its process, if nothing is told
    std::string cause = {};                           // why it is lost
    int starts = 0;
  };
  bool survives() const { return options_.on_failure != OnFailure::Stop; }
  // Whether the job goes on without a worker whose process has failed; nothing: not known yet.
  std::optional<bool> goes_on_without(const LaunchedWorker& worker);
  void ended_badly(LaunchedWorker& worker);
  void go_on_without(const LaunchedWorker& worker);
  // A worker has ended well: one that was started again and takes no part yet never will.
  void give_up_newcomers();
  // Until when to wait for events; -1: for as long as it takes.
  int milliseconds_to_wait() const;
  void decide_overdue();
  void deadline_passed();
  void kill_all();
  void enter(Phase phase, std::chrono::milliseconds limit);
  void say(const std::string& sentence);
  void say_what_followed();

  const LaunchOptions& options_;
  bool several_hosts_;
  Screen screen_;
  SignalsAsEvents signals_;
  Guard guard_;
  std::shared_ptr<Reports> reports_ = std::make_shared<Reports>();
  Descriptor epoll_;
  std::string secret_;
  std::vector<CoreShare> cores_;  // by number on this host
  std::unique_ptr<ControlPlane> control_;
  std::vector<std::unique_ptr<LaunchedWorker>> workers_;
  std::vector<Part> parts_;  // by worker
  int running_ = 0;

  Phase phase_ = Phase::Running;
  std::optional<Clock::time_point> deadline_;
  int interrupts_ = 0;  // how often SIGINT or SIGTERM came
  JobResult result_;
  int followers_ = 0;        // workers that ended after the first that failed
  int culprit_ = -1;         // the worker that has said that it failed, and has not ended yet
  int first_follower_ = -1;  // the first that ended because of it
};

}  // namespace lockstep::launch
