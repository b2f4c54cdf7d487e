// Pass: a named transformation of a graph.
#pragma once

#include <string_view>

#include "lockstep/graph/graph.h"

namespace lockstep {

class Pass {
 public:
  virtual ~Pass() = default;
  virtual std::string_view name() const = 0;
  virtual void run(Graph& graph) = 0;
};

}  // namespace lockstep
