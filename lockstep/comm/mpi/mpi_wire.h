// A wire over MPI: its processes are the workers.
#pragma once

#include <chrono>

#include "lockstep/comm/wire.h"

namespace lockstep {

bool has_mpi();
// Initialises MPI unless the program has; then it is finalised when the program ends. UsageError if
// this build has no MPI.
//
// The rank of this process is its worker. `timeout`: how long the workers wait for one another. MPI
// itself ends all processes of a job when one of them ends without notice.
MakeWire mpi_wires(std::chrono::milliseconds timeout = std::chrono::minutes(5));
// The rank and number of the processes that MPI has started.
struct MpiPlace {
  int worker = 0;
  int workers = 1;
};
MpiPlace mpi_place();

}  // namespace lockstep
