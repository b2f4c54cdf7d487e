// Ranks as threads and as processes, and data whose sums are known.
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

#include "comm/processes.h"
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

// Where the ranks of a group are: threads of one process, or so many in each of several.
struct Placement {
  bool shared = false;
  std::vector<int> ranks_of_process;
};

inline Placement threads(int ranks) {
  return {.ranks_of_process = {ranks}};
}

inline Placement processes(std::vector<int> ranks_of_process) {
  return {.shared = true, .ranks_of_process = std::move(ranks_of_process)};
}

// "Threads3", "Processes2And2".
inline std::string name_of(const Placement& placement) {
  std::string name = placement.shared ? "Processes" : "Threads";
  for (std::size_t i = 0; i < placement.ranks_of_process.size(); ++i) {
    name += (i > 0 ? "And" : "") + std::to_string(placement.ranks_of_process[i]);
  }
  return name;
}

inline void PrintTo(const Placement& placement, std::ostream* out) {
  *out << name_of(placement);
}

// Runs body(group) in every process of a group.
inline void with_group(const Placement& placement, const std::function<void(Group&)>& body) {
  if (!placement.shared) {
    LocalGroup group(group_of(placement.ranks_of_process.front()));
    return body(group);
  }
  const auto count = static_cast<int>(placement.ranks_of_process.size());
  const auto statuses = run_processes({.processes = count}, [&](SharedHost& host) {
    const auto group = host.make_group(shared_group_of(placement.ranks_of_process));
    body(*group);
  });
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

// The sums over the ranks as the contract says, element by element, in the order of the ranks.
Bytes sum_over_ranks(DType dtype, const std::vector<Bytes>& ranks);

}  // namespace lockstep
