#include "lockstep/kernels/onednn/norm_tiles.h"

#include <cmath>
#include <cstring>

#include "lockstep/kernels/onednn/lanes.h"

// Functions that take and return vectors are always inlined, so no ABI depends on how vectors are
// passed.
#pragma GCC diagnostic ignored "-Wpsabi"

#define LOCKSTEP_ISA_FILE "lockstep/kernels/onednn/norm_loops.inc"
#include "lockstep/kernels/onednn/every_isa.h"

namespace lockstep::onednn {

NormLoops norm_loops(bool relu, bool residual) {
  return best_isa(v4::loops, v3::loops, any_isa::loops)(relu, residual);
}

NormAffine norm_affine(float gamma, float beta, float mean, float variance, double epsilon) {
  const double factor = gamma / std::sqrt(variance + epsilon);
  return {static_cast<float>(factor), static_cast<float>(beta - mean * factor)};
}

NormGradLoops norm_grad_loops(const NormGradForm& form) {
  return best_isa(v4::grad_loops, v3::grad_loops, any_isa::grad_loops)(form);
}

}  // namespace lockstep::onednn
