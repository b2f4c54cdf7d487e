// Thief: keeps a core busy for a part of the time, before all other threads, which needs root.
// Where the system grants no real-time priority, it has the highest of the ordinary ones.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace lockstep {

class Thief {
 public:
  Thief(int core, double share) {
    thread_ = std::thread([this, core, share] {
      using Clock = std::chrono::steady_clock;
      cpu_set_t cores;
      CPU_ZERO(&cores);
      CPU_SET(core, &cores);
      pthread_setaffinity_np(pthread_self(), sizeof(cores), &cores);
      sched_param priority{.sched_priority = 1};
      if (pthread_setschedparam(pthread_self(), SCHED_FIFO, &priority) != 0 &&
          setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), -20) != 0) {
        failed_ = true;
      }
      const std::chrono::milliseconds period(2);
      for (auto next = Clock::now(); !ended_; next += period) {
        const auto until = next + std::chrono::duration_cast<Clock::duration>(period * share);
        while (Clock::now() < until) {
        }
        std::this_thread::sleep_until(next + period);
      }
    });
  }
  ~Thief() {
    ended_ = true;
    thread_.join();
  }
  Thief(const Thief&) = delete;
  Thief& operator=(const Thief&) = delete;
  // It has no priority over others, and takes less than its share.
  bool failed() const { return failed_; }

 private:
  std::atomic<bool> ended_ = false;
  std::atomic<bool> failed_ = false;
  std::thread thread_;
};

}  // namespace lockstep
