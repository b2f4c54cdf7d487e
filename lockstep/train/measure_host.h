// What the devices of a host do to one another, for measure_step.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/explain/measured_step.h"
#include "lockstep/runtime/world.h"

namespace lockstep {

// A collective ("all_reduce", "reduce_scatter" or "all_gather") between all ranks of a world in one
// process, on lists of such sizes one after another: a line through their times.
HostCollective measure_host_collective(World& world, std::string_view op, DType dtype,
                                       const std::vector<std::int64_t>& bytes, double seconds);

// How long it takes all ranks to begin a job that does nothing, and to end it.
double measure_meeting(World& world);

// Seconds of a core per byte that it sends or receives over TCP, on loopback; 0 if that is not
// possible here.
double measure_wire_cost();

// "NVIDIA H200", or the name of the processor and the number of the device's cores.
std::string hardware_of(const Device& device);

}  // namespace lockstep
