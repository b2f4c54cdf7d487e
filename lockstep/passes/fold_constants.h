// Computes once what a step would compute in every run from constants alone, and leaves out what
// changes nothing: x · 1, x / 1, x - 0 and a choice by a constant condition. (x + 0 stays: it makes
// 0 of -0.) Results keep their bits.
#pragma once

#include "lockstep/graph/backend.h"
#include "lockstep/passes/pass.h"

namespace lockstep {

class FoldConstants final : public Pass {
 public:
  explicit FoldConstants(const Backend& backend) : backend_(backend) {}
  std::string_view name() const override { return "fold constants"; }
  void run(Graph& graph) override;

 private:
  const Backend& backend_;
};

}  // namespace lockstep
