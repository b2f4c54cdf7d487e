// MemoryError: a device has not as much memory as was asked for.
#pragma once

#include "lockstep/base/error.h"

namespace lockstep {

class MemoryError : public UsageError {
 public:
  using UsageError::UsageError;
};

}  // namespace lockstep
