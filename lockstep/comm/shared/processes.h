// Processes: the processes of a job on one host, which of them have come, and which have died.
//
// The death of a process is detected with a pidfd: the kernel makes it readable when the process
// ends, however it ends, and whether or not its parent has reaped it. A lock on the shared file
// would not need pids, but is not reliable: an fcntl lock is lost when any part of the process
// closes any descriptor of the file, and a flock lock is kept by whatever the process has forked. A
// pid may be reused by another process; its start time, which is published with it, tells the two
// apart when the pidfd is opened. All processes must be in one PID namespace, as those started by
// one launcher are.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/local/event_count.h"

namespace lockstep {

// What a process publishes about itself in shared memory, all zero at first.
struct ProcessRecord {
  alignas(64) std::atomic<std::int32_t> pid = 0;  // 0: it has not come yet
  std::atomic<std::uint64_t> start_time = 0;
  // Of the group being made; two, used in turns: the next may begin before all have read this one.
  std::atomic<std::uint64_t> digest[2] = {};
  std::atomic<std::int32_t> error[2] = {};  // errno where it could not get memory
};

class Processes {
 public:
  // Announces that this process has come. The records outlive this object.
  Processes(std::span<ProcessRecord> records, int process);
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  int count() const { return static_cast<int>(records_.size()); }
  int process() const { return process_; }
  ProcessRecord& record(int process) const { return records_[static_cast<std::size_t>(process)]; }
  // "process 1 (pid 4711)".
  std::string name(int process) const;
  // Whether a process had come and has ended. From any thread; allocates nothing.
  bool is_dead(int process);

 private:
  std::span<ProcessRecord> records_;
  int process_;
  std::mutex mutex_;
  std::vector<int> pidfds_;  // by process; -1: not opened yet
};

// Where processes wait for one another: every pass ends when all have begun it.
class ProcessBarrier {
 public:
  static std::size_t bytes(int processes);
  // In shared memory, all zero at first and aligned to 64 bytes.
  ProcessBarrier(std::byte* memory, Processes& processes);

  // CommError that names the processes that are missing after the timeout, or those that have died
  // as soon as that is detected. `what`: "make a group".
  void pass(const std::string& what, std::chrono::milliseconds timeout);

 private:
  struct Entered {
    alignas(64) std::atomic<std::uint64_t> count = 0;
  };
  std::vector<int> find_dead() const;

  Processes& processes_;
  EventCount& changes_;
  std::span<Entered> entered_;
  std::uint64_t passes_ = 0;
};

}  // namespace lockstep
