// The one family of exceptions. A message names the op, layer, file or record concerned, shows both
// offending values, and says what to change where that is not obvious.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace lockstep {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller asked for something impossible: a shape, a type, an option.
class UsageError : public Error {
 public:
  using Error::Error;
};

// A file or record is not what it should be; the message names both.
class DataError : public Error {
 public:
  using Error::Error;
};

// Another process or device could not be reached; recoverable by building a new communicator.
class CommError : public Error {
 public:
  using Error::Error;
};

// An invariant of Lockstep was broken: a bug here, not in the caller.
class InternalError : public Error {
 public:
  using Error::Error;
};

// Throws E with the formatted message: fail<UsageError>("[matmul] {}: ...", name).
template <class E, class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw E(fmt::format(format, std::forward<Args>(args)...));
}

// Throws UsageError unless the condition holds.
template <class... Args>
void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) fail<UsageError>(format, std::forward<Args>(args)...);
}

// Throws InternalError unless the condition holds.
template <class... Args>
void ensure(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) fail<InternalError>(format, std::forward<Args>(args)...);
}

}  // namespace lockstep
