// Takes the place of MPI where it was not found.
#include "lockstep/comm/mpi/mpi_wire.h"

namespace lockstep {
namespace {

[[noreturn]] void fail_without_mpi() {
  fail<UsageError>(
      "[comm] this build of Lockstep has no MPI: install libopenmpi-dev and build again, or use "
      "Gloo");
}

}  // namespace

bool has_mpi() {
  return false;
}

MakeWire mpi_wires(std::chrono::milliseconds) {
  fail_without_mpi();
}

MpiPlace mpi_place() {
  fail_without_mpi();
}

}  // namespace lockstep
