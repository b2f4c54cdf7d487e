// Ranks as threads, and data whose sums are known.
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

#include "lockstep/base/dtype.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/local/local_group.h"

namespace lockstep {

inline LocalGroupOptions group_of(int ranks) {
  LocalGroupOptions options;
  for (int rank = 0; rank < ranks; ++rank) options.names.push_back("cpu:" + std::to_string(rank));
  return options;
}

// Runs body(communicator) for every rank, each on a thread of its own, and gives the message of
// each rank's CommError, "" where there was none. A rank that fails in another way aborts the group
// and fails the test.
inline std::vector<std::string> run_ranks(LocalGroup& group,
                                          const std::function<void(Communicator&)>& body,
                                          int openmp_threads = 1) {
  std::vector<std::string> errors(static_cast<std::size_t>(group.size()));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < group.size(); ++rank) {
    threads.emplace_back([&, rank] {
      omp_set_num_threads(openmp_threads);
      try {
        body(group.rank(rank));
      } catch (const CommError& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
        group.rank(rank).abort(error.what());
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

// The types that can be added up.
inline constexpr DType kSummable[] = {DType::F32, DType::F64, DType::I32,
                                      DType::I64, DType::F16, DType::BF16};

// Random elements of about one, where the order of addition shows; integers of any size.
Bytes random_elements(DType dtype, std::size_t count, std::uint64_t seed, std::uint64_t stream);

// The sums over the ranks as the contract says, element by element, in the order of the ranks.
Bytes sum_over_ranks(DType dtype, const std::vector<Bytes>& ranks);

}  // namespace lockstep
