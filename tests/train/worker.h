// TestWorker: this process as one of several workers that run the same tests together, each with a
// part of the replicas (over_processes_test.cpp starts them).
#pragma once

#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>

#include "lockstep/cluster/control/control_client.h"
#include "lockstep/comm/shared/shared_host.h"
#include "lockstep/train/strategy_impl.h"

namespace lockstep::testing {

// "PROCESS PROCESSES shared DESCRIPTOR", or "PROCESS PROCESSES gloo ADDRESS" of a control server;
// then the GPU of the process, or nothing for CPUs.
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

  int process() const { return process_; }
  const std::string& gpu() const { return gpu_; }  // empty: it has CPUs
  // Of `replicas`, the first ones are on the first worker, as evenly as they go; unless `options`
  // name the devices of this one. With GPUs every worker has one replica, whatever is asked for.
  Strategy strategy(int replicas, const MirroredOptions& options) const {
    const int begin = replicas * process_ / processes_;
    const int end = replicas * (process_ + 1) / processes_;
    WorldOptions world{.logical_cpus = replicas,
                       .buckets = options.buckets,
                       .timeout = std::chrono::seconds(60),
                       .cuda = options.cuda,
                       .share_gpus = true,
                       .links = links(),
                       .membership = members_};
    if (!gpu_.empty()) {
      world.devices = {gpu_};
    } else if (!options.devices.empty()) {
      world.devices = options.devices;
    } else {
      for (int r = begin; r < end; ++r) world.devices.push_back("cpu:" + std::to_string(r));
    }
    return Made({.world = std::make_shared<World>(world),
                 .balance = options.balance,
                 .check_replicas_every = options.check_replicas_every});
  }

 private:
  struct Made : Strategy {
    explicit Made(StrategyImpl impl) : Strategy(std::move(impl)) {}
  };

  explicit TestWorker(const char* text) {
    std::string how;
    std::string where;
    std::istringstream(text) >> process_ >> processes_ >> how >> where >> gpu_;
    if (how == "shared") {
      host_ = std::make_shared<SharedHost>(std::stoi(where), process_, processes_,
                                           std::chrono::seconds(60));
    } else {
      members_ = std::make_shared<ControlClient>(
          ControlClientOptions{.address = where, .worker = process_, .workers = processes_});
    }
  }

  // Every strategy has its own.
  std::shared_ptr<WorkerLinks> links() const {
    if (host_ != nullptr) return make_shared_links(host_);
    return make_worker_links(members_, {.transport = Transport::Gloo,
                                        .timeout = std::chrono::seconds(60),
                                        .prefix = "world " + std::to_string(worlds_++)});
  }

  int process_ = 0;
  int processes_ = 1;
  std::string gpu_;
  std::shared_ptr<SharedHost> host_;
  std::shared_ptr<Membership> members_;
  mutable int worlds_ = 0;
};

}  // namespace lockstep::testing
