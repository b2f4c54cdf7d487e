// Ranks as threads: each has a graph, a state and an executor, over local groups.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/local/local_group.h"
#include "lockstep/exec/executor.h"
#include "lockstep/passes/pipeline.h"
#include "lockstep/plan/plan.h"

namespace lockstep {

class Ranks {
 public:
  // Optimises, plans and binds the graph that `make_graph` gives for each rank.
  Ranks(int size, const std::function<Graph(int rank)>& make_graph)
      : compute_(options(size)), gradients_(options(size)) {
    for (int r = 0; r < size; ++r) {
      Graph graph = make_graph(r);
      optimize(graph, cpu_kernels());
      states_.push_back(std::make_unique<State>(host(), 1));
      executors_.push_back(std::make_unique<Executor>(
          make_plan(std::move(graph), cpu_kernels()), cpu_kernels(), *states_.back(),
          ExecutorOptions{.compute_comm = size > 1 ? &compute_.rank(r) : nullptr,
                          .gradient_comm = size > 1 ? &gradients_.rank(r) : nullptr}));
    }
  }

  Executor& executor(int rank) { return *executors_[static_cast<std::size_t>(rank)]; }
  State& state(int rank) { return *states_[static_cast<std::size_t>(rank)]; }
  int size() const { return static_cast<int>(executors_.size()); }

  // One step on every rank.
  void run() {
    std::vector<std::thread> threads;
    std::vector<std::exception_ptr> errors(executors_.size());
    for (std::size_t r = 0; r < executors_.size(); ++r) {
      threads.emplace_back([&, r] {
        try {
          executors_[r]->run();
        } catch (...) {
          errors[r] = std::current_exception();
          compute_.abort({.message = "another rank failed"});
          gradients_.abort({.message = "another rank failed"});
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& error : errors) {
      if (error) std::rethrow_exception(error);
    }
  }

 private:
  static LocalGroupOptions options(int size) {
    LocalGroupOptions options{.timeout = std::chrono::seconds(60)};
    for (int r = 0; r < size; ++r) options.names.push_back("rank " + std::to_string(r));
    return options;
  }

  LocalGroup compute_;
  LocalGroup gradients_;
  std::vector<std::unique_ptr<State>> states_;
  std::vector<std::unique_ptr<Executor>> executors_;
};

}  // namespace lockstep
