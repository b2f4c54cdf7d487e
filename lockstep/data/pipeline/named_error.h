// Adds to exceptions, such as those of user functions, where they happened.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/data/element.h"

namespace lockstep {

class MemoryError;

// A stage ran out of memory. It does not derive from Error, so that on_error = skip does not treat
// it as a damaged sample; the iterator turns it into a UsageError with the same message.
class StageOutOfMemory : public std::bad_alloc {
 public:
  explicit StageOutOfMemory(const std::string& place);
  StageOutOfMemory(const std::string& place, const MemoryError& cause);
  const char* what() const noexcept override { return what_->c_str(); }

 private:
  std::shared_ptr<const std::string> what_;  // copying an exception must not throw
};

// Call in a catch block: rethrows the exception with place(its message) in front of its message.
// UsageError and InternalError keep their type; out-of-memory errors of any type become
// StageOutOfMemory; all others become DataError.
[[noreturn]] void rethrow_at(const std::function<std::string(std::string_view message)>& place);
[[noreturn]] void rethrow_at(const std::string& place);
// "[filter valid] sample 17 of epoch 0: …", "[map parse] train.tfrecord: record 17: …".
[[noreturn]] void rethrow_at(const std::string& stage, const SampleId& sample);

// Call in a catch block: the current exception; if it is an out-of-memory error, with the stage.
std::exception_ptr caught_in(const std::string& stage) noexcept;

}  // namespace lockstep
