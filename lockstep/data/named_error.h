// What the user's own functions throw, told with the place where it happened.
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

// Memory ran out in a stage. It is no Error, so that on_error = skip does not take it for a damaged
// sample; whoever asked the iterator gets a UsageError with its words.
class StageOutOfMemory : public std::bad_alloc {
 public:
  explicit StageOutOfMemory(const std::string& place);
  StageOutOfMemory(const std::string& place, const MemoryError& cause);
  const char* what() const noexcept override { return what_->c_str(); }

 private:
  std::shared_ptr<const std::string> what_;  // copies of exceptions must not throw
};

// Called in a handler: throws what was caught again, with place(its message) in front of its
// message. Errors of the caller and our own keep their type; memory that ran out, in whichever
// words, becomes StageOutOfMemory; all others become DataErrors.
[[noreturn]] void rethrow_at(const std::function<std::string(std::string_view message)>& place);
[[noreturn]] void rethrow_at(const std::string& place);
// "[filter valid] sample 17 of epoch 0: …", "[map parse] train.tfrecord: record 17: …".
[[noreturn]] void rethrow_at(const std::string& stage, const SampleId& sample);

// Called in a handler: what was caught; where memory ran out, with the stage that it ran out in.
std::exception_ptr caught_in(const std::string& stage) noexcept;

}  // namespace lockstep
