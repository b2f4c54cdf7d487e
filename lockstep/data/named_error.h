// What the user's own functions throw, told with the place where it happened.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/data/element.h"

namespace lockstep {

// Called in a handler: throws what was caught again, with `place` in front of its message. Errors
// of the caller and our own keep their type; all others become DataErrors.
[[noreturn]] inline void rethrow_at(const std::string& place) {
  try {
    throw;
  } catch (const UsageError& error) {
    throw UsageError(place + error.what());
  } catch (const InternalError& error) {
    throw InternalError(place + error.what());
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw DataError(place + error.what());
  } catch (...) {
    throw DataError(place + "something that is no std::exception was thrown");
  }
}

// "[filter valid] sample 17 of epoch 0: "
inline std::string place_of(const std::string& stage, SampleId sample) {
  return fmt::format("[{}] sample {} of epoch {}: ", stage, sample.number, sample.epoch);
}

}  // namespace lockstep
