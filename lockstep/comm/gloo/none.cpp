// Takes the place of Gloo where it was not found.
#include "lockstep/comm/gloo/gloo_wire.h"

namespace lockstep {

bool has_gloo() {
  return false;
}

MakeWire gloo_wires(const GlooOptions&) {
  fail<UsageError>(
      "[comm] this build of Lockstep has no Gloo: install libgloo-dev and build again, or use MPI");
}

}  // namespace lockstep
