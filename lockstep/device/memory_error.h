// MemoryError: a device does not have as much memory as was requested.
#pragma once

#include "lockstep/base/error.h"

namespace lockstep {

class MemoryError : public UsageError {
 public:
  using UsageError::UsageError;
};

}  // namespace lockstep
