// JobQueue: the jobs of train_many and their progress. Training threads take jobs from it and
// report to it; the thread that called train_many watches it and draws the progress.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <iosfwd>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/train/callback.h"
#include "lockstep/train/history.h"
#include "lockstep/train/train_many.h"

namespace lockstep {

class JobQueue {
 public:
  JobQueue(std::vector<std::string> names, std::vector<std::string> devices);

  // For training threads. The noexcept ones do not allocate, so they cannot fail.
  // Starts the next job; nothing if there are no more, or after abandon.
  std::optional<std::size_t> take(std::size_t device) noexcept;
  void end_well(std::size_t job, History history) noexcept;
  void end_badly(std::size_t job, std::exception_ptr error) noexcept;
  // Reports the progress of a job's fit. Must not outlive the queue.
  CallbackRef callback(std::size_t job);

  // For the calling thread.
  // Draws the progress until every job has ended.
  void watch(std::ostream* stream, bool terminal);
  // No more jobs start, and running ones stop after their current step.
  void abandon() noexcept;
  // Call it only after every job has ended.
  std::vector<TrainResult> results();

 private:
  class Follower;
  enum class State { Waiting, Running, Done, Failed };
  struct Job {
    State state = State::Waiting;
    std::size_t device = 0;
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;
    std::int64_t epochs = 0;  // one past the last
    std::optional<std::int64_t> steps_per_epoch = {};
    std::int64_t epoch = 0;
    std::int64_t steps = 0;  // of this epoch
    std::int64_t samples = 0;
    std::int64_t epoch_begin_ns = 0;
    double loss = 0;
    std::optional<History> history = {};
    std::exception_ptr error = {};
    double seconds() const { return static_cast<double>(end_ns - begin_ns) * 1e-9; }
  };
  struct Event {
    std::size_t job = 0;
    bool ended = false;
  };

  void end(std::size_t job, State state) noexcept;
  // Return whether the job should continue.
  bool begin_fit(std::size_t job, const FitInfo& info);
  bool begin_epoch(std::size_t job, std::int64_t epoch);
  bool step(std::size_t job, std::int64_t steps, const BatchLogs& logs);

  // With the mutex held.
  std::string begin_line(std::size_t job) const;
  std::string end_line(std::size_t job) const;
  std::string running_line(const Job& job, const std::string& name, std::size_t width) const;
  std::string lines_of_events(bool with_beginnings);
  std::vector<std::string> running_lines() const;

  const std::vector<std::string> names_;
  const std::vector<std::string> devices_;

  std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  std::vector<Job> jobs_;
  std::vector<Event> events_;  // not drawn yet; capacity for all there will be
  std::size_t next_ = 0;       // the first job not taken yet
  std::size_t open_;           // jobs that have not ended
  bool abandoned_ = false;
};

}  // namespace lockstep
