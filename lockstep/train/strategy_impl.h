// What a Strategy holds. Shared by the files that implement training on it.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/runtime/session.h"
#include "lockstep/train/strategy.h"

namespace lockstep {

struct StrategyImpl {
  std::shared_ptr<World> world;
  Balance balance = Balance::Even;
  std::int64_t check_replicas_every = 0;
  mutable std::shared_ptr<Session> session = {};  // of its functions
};

}  // namespace lockstep
