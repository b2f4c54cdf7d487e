#include "lockstep/kernels/onednn/norm_tiles.h"

#include <cmath>
#include <cstring>

#include "lockstep/kernels/onednn/lanes.h"

// Functions that take and return vectors are always inlined, so no ABI depends on how vectors are
// passed.
#pragma GCC diagnostic ignored "-Wpsabi"

#define LOCKSTEP_ISA_FILE "lockstep/kernels/onednn/norm_sweeps.inc"
#include "lockstep/kernels/onednn/every_isa.h"

namespace lockstep::onednn {

NormSweeps norm_sweeps(bool relu, bool residual) {
  return best_isa(v4::sweeps, v3::sweeps, any_isa::sweeps)(relu, residual);
}

NormAffine norm_affine(float gamma, float beta, float mean, float variance, double epsilon) {
  const double factor = gamma / std::sqrt(variance + epsilon);
  return {static_cast<float>(factor), static_cast<float>(beta - mean * factor)};
}

NormGradSweeps norm_grad_sweeps(const NormGradForm& form) {
  return best_isa(v4::grad_sweeps, v3::grad_sweeps, any_isa::grad_sweeps)(form);
}

}  // namespace lockstep::onednn
