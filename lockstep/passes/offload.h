// Offload: the optimizer's slots are kept in host memory instead of the device's. Each update is
// divided into updates of few enough parameters that their slots fit into a staging buffer on the
// device: they are copied there, updated, and copied back, beside the backward pass. (The planner
// has two such buffers, used in turns; the executor writes the copies: exec/staged_update.h.)
#pragma once

#include <cstddef>

#include "lockstep/passes/pass.h"

namespace lockstep {

struct OffloadOptions {
  // Slots of one staging buffer; a parameter whose slots are larger has an update of its own.
  std::size_t staging_bytes = std::size_t{32} << 20;
};

class OffloadPass final : public Pass {
 public:
  explicit OffloadPass(OffloadOptions options = {}) : options_(options) {}
  std::string_view name() const override { return "offload"; }
  void run(Graph& graph) override;

 private:
  OffloadOptions options_;
};

}  // namespace lockstep
