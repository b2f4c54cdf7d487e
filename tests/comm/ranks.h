// Ranks as threads, as processes and as workers over Gloo or MPI, and data whose sums are known.
#pragma once

#include <gtest/gtest.h>
#include <omp.h>

#include <cstring>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/mpirun.h"
#include "comm/processes.h"
#include "comm/workers.h"
#include "lockstep/base/dtype.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/local/local_group.h"
#include "lockstep/comm/shared/shared_host.h"

namespace lockstep {

inline LocalGroupOptions group_of(int ranks) {
  LocalGroupOptions options;
  for (int rank = 0; rank < ranks; ++rank) options.names.push_back("cpu:" + std::to_string(rank));
  return options;
}

inline SharedGroupOptions shared_group_of(const std::vector<int>& ranks_of_process) {
  SharedGroupOptions options{.ranks_of_process = ranks_of_process};
  for (const int ranks : ranks_of_process) {
    for (int i = 0; i < ranks; ++i) {
      options.names.push_back("cpu:" + std::to_string(options.names.size()));
    }
  }
  return options;
}

// Where the ranks of a group are: threads of one process, or so many in each of several, which meet
// in shared memory, over Gloo (as threads of one process, or as processes) or over MPI.
enum class Site { Threads, Processes, Gloo, GlooProcesses, Mpi };
struct Placement {
  Site site = Site::Threads;
  std::vector<int> ranks_of_worker;
};

inline Placement threads(int ranks) {
  return {.ranks_of_worker = {ranks}};
}

inline Placement processes(std::vector<int> ranks_of_process) {
  return {.site = Site::Processes, .ranks_of_worker = std::move(ranks_of_process)};
}

inline Placement over_gloo(std::vector<int> ranks_of_worker) {
  return {.site = Site::Gloo, .ranks_of_worker = std::move(ranks_of_worker)};
}

inline Placement processes_over_gloo(std::vector<int> ranks_of_worker) {
  return {.site = Site::GlooProcesses, .ranks_of_worker = std::move(ranks_of_worker)};
}

inline Placement over_mpi(std::vector<int> ranks_of_worker) {
  return {.site = Site::Mpi, .ranks_of_worker = std::move(ranks_of_worker)};
}

// "Threads3", "Processes2And2".
inline std::string name_of(const Placement& placement) {
  constexpr const char* kNames[] = {"Threads", "Processes", "OverGloo", "ProcessesOverGloo",
                                    "OverMpi"};
  std::string name = kNames[static_cast<std::size_t>(placement.site)];
  for (std::size_t i = 0; i < placement.ranks_of_worker.size(); ++i) {
    name += (i > 0 ? "And" : "") + std::to_string(placement.ranks_of_worker[i]);
  }
  return name;
}

inline void PrintTo(const Placement& placement, std::ostream* out) {
  *out << name_of(placement);
}

// Runs body(host, store) in processes that share a store as well; returns as run_processes.
inline std::vector<int> run_processes_with_store(
    const ProcessesOptions& options, const std::function<void(SharedHost&, Store&)>& body) {
  const bool child = std::getenv(kProcessVariable) != nullptr;
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() /
      ("lockstep_store_" + std::to_string(child ? getppid() : getpid()));
  if (!child) std::filesystem::remove_all(folder);
  const auto statuses = run_processes(options, [&](SharedHost& host) {
    FolderStore store(folder);
    body(host, store);
  });
  std::filesystem::remove_all(folder);
  return statuses;
}

// Runs body(group) in every process or worker of a group.
inline void with_group(const Placement& placement, const std::function<void(Group&)>& body) {
  const std::vector<int>& ranks = placement.ranks_of_worker;
  const auto count = static_cast<int>(ranks.size());
  std::vector<int> statuses;
  switch (placement.site) {
    case Site::Threads: {
      LocalGroup group(group_of(ranks.front()));
      return body(group);
    }
    case Site::Processes:
      statuses = run_processes({.processes = count}, [&](SharedHost& host) {
        const auto group = host.make_group(shared_group_of(ranks));
        body(*group);
      });
      break;
    case Site::Gloo:
      if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo (libgloo-dev)";
      return run_gloo_workers(ranks, [&](Group& group, int) { body(group); });
    case Site::GlooProcesses:
      if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo (libgloo-dev)";
      statuses =
          run_processes_with_store({.processes = count}, [&](SharedHost& host, Store& store) {
            RemoteGroup group(
                remote_group_of(ranks, gloo_wires(gloo_options(store, host.process(), count))));
            body(group);
          });
      break;
    case Site::Mpi:
      return run_mpi_workers(ranks, [&](Group& group, int) { body(group); });
  }
  for (const int status : statuses) EXPECT_EQ(status, 0);
}

// Runs body(communicator) for every rank of this process, each on its own thread, and returns the
// message of each rank's CommError, "" if there was none. A rank that fails in another way aborts
// the group and fails the test.
inline std::vector<std::string> run_ranks(Group& group,
                                          const std::function<void(Communicator&)>& body,
                                          int openmp_threads = 1) {
  std::vector<std::string> errors(static_cast<std::size_t>(group.size()));
  std::vector<std::thread> threads;
  for (const int rank : group.local()) {
    threads.emplace_back([&, rank] {
      omp_set_num_threads(openmp_threads);
      try {
        body(group.rank(rank));
      } catch (const CommError& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
        group.abort(failure_of(rank, std::current_exception()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

inline void expect_no_errors(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// Data of any type, as bytes.
using Bytes = std::vector<std::byte>;

template <class T>
T load(const Bytes& bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void store(Bytes& bytes, std::size_t i, T value) {
  std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
}

// The types that can be added.
inline constexpr DType kSummable[] = {DType::F32, DType::F64, DType::I32,
                                      DType::I64, DType::F16, DType::BF16};

// Random elements of magnitude one, whose sum depends on the order of addition; integers of any
// size.
Bytes random_elements(DType dtype, std::size_t count, std::uint64_t seed, std::uint64_t stream);

// The sums over the ranks as the contract says, element by element: in the order of the ranks of
// each worker, then in that of the workers, above 16 in a tree. Without `ranks_of_worker`, all are
// of one.
Bytes sum_over_ranks(DType dtype, const std::vector<Bytes>& ranks,
                     const std::vector<int>& ranks_of_worker = {});

}  // namespace lockstep
