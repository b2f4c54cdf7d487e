// TestWorker: this process as one of several workers that run the same tests together, each with a
// part of the replicas, which meet in shared memory (over_processes_test.cpp starts them).
#pragma once

#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>

#include "lockstep/comm/shared/shared_host.h"
#include "lockstep/train/strategy_impl.h"

namespace lockstep::testing {

// "PROCESS PROCESSES DESCRIPTOR"
inline constexpr const char* kWorkerVariable = "LOCKSTEP_TEST_WORKER";

class TestWorker {
 public:
  // Null where the test runs in one process.
  static const TestWorker* current() {
    static const std::unique_ptr<const TestWorker> worker = [] {
      const char* const text = std::getenv(kWorkerVariable);
      return text == nullptr ? nullptr : std::unique_ptr<const TestWorker>(new TestWorker(text));
    }();
    return worker.get();
  }

  int process() const { return host_->process(); }
  // Of `replicas`, the first ones are on the first worker, as evenly as they go.
  Strategy strategy(int replicas, const MirroredOptions& options) const {
    const int workers = host_->processes();
    const int begin = replicas * process() / workers;
    const int end = replicas * (process() + 1) / workers;
    WorldOptions world{.logical_cpus = replicas,
                       .buckets = options.buckets,
                       .timeout = std::chrono::seconds(60),
                       .links = make_shared_links(host_)};
    for (int r = begin; r < end; ++r) world.devices.push_back("cpu:" + std::to_string(r));
    return Made({.world = std::make_shared<World>(world),
                 .balance = options.balance,
                 .check_replicas_every = options.check_replicas_every});
  }

 private:
  struct Made : Strategy {
    explicit Made(StrategyImpl impl) : Strategy(std::move(impl)) {}
  };

  explicit TestWorker(const char* text) {
    int process = 0;
    int processes = 0;
    int fd = 0;
    std::istringstream(text) >> process >> processes >> fd;
    host_ = std::make_shared<SharedHost>(fd, process, processes, std::chrono::seconds(60));
  }

  std::shared_ptr<SharedHost> host_;
};

}  // namespace lockstep::testing
