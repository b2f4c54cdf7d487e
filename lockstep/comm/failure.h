// Failure: what went wrong first in a group, and where. It is plain data that crosses processes, so
// that every process can throw the same kind of error with the same text.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

namespace lockstep {

enum class FailureKind : std::uint8_t { Comm, Usage, Data, Memory, Internal, Other };

struct Failure {
  int rank = -1;  // in the group; -1: none in particular
  FailureKind kind = FailureKind::Other;
  std::string message = {};
};

// The failure that describes an exception of a rank.
Failure failure_of(int rank, const std::exception_ptr& error);
// Throws the error that the failure describes: CommError, UsageError, DataError, MemoryError,
// InternalError; Error for any other.
[[noreturn]] void throw_failure(const Failure& failure);

}  // namespace lockstep
