#include "lockstep/kernels/onednn/norm_tiles.h"

#include <cstring>
#include <type_traits>

#include "lockstep/kernels/onednn/lanes.h"

// What takes and returns vectors is part of its caller: no interface depends on how they are
// passed.
#pragma GCC diagnostic ignored "-Wpsabi"

#define LOCKSTEP_ISA_FILE "lockstep/kernels/onednn/norm_sweeps.inc"
#include "lockstep/kernels/onednn/every_isa.h"

namespace lockstep::onednn {

NormSweeps norm_sweeps(bool relu, bool residual) {
  return best_isa(v4::sweeps, v3::sweeps, any_isa::sweeps)(relu, residual);
}

NormGradSweeps norm_grad_sweeps(const NormGradForm& form) {
  return best_isa(v4::grad_sweeps, v3::grad_sweeps, any_isa::grad_sweeps)(form);
}

}  // namespace lockstep::onednn
