#include "lockstep/kernels/reference/reference.h"

namespace lockstep {

void add_reference_kernels(KernelLibrary& library) {
  add_reference_half(library);  // first, because the others do not check for 16-bit floats
  add_reference_elementwise(library);
  add_reference_activation(library);
  add_reference_pointwise(library);
  add_reference_reduce(library);
  add_reference_shape(library);
  add_reference_matmul(library);
  add_reference_conv(library);
  add_reference_pool(library);
  add_reference_norm(library);
  add_reference_random(library);
  add_reference_softmax(library);
  add_reference_update(library);
  add_reference_error_feedback(library);
  add_reference_collective(library);
  add_reference_layout(library);
}

}  // namespace lockstep
