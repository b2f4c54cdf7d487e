// Network: an interconnect between replicas, as its latency and bandwidth, known by name or given
// as figures; and Topology: how many replicas a host has.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// A link in one direction. The other direction has the same bandwidth at the same time.
struct Link {
  std::string name;
  double latency_s = 0;         // of a small message, software included
  double bytes_per_s = 0;       // that a program gets
  bool shared_by_host = false;  // whether all replicas of a host share it: a network card
};

// The interconnects that are known by name, slowest first: "1Gbit", …, "ib-ndr", "pcie5",
// "nvlink5".
const std::vector<Link>& known_links();
std::string known_link_names();

// A name from the list, or figures, or a name whose latency is replaced: "100Gbit", "nvlink4",
// "1Gbit,2ms" (a line and its delay, to which software adds a little), "40GB/s,5us" (as a program
// measures it), "8xib-ndr" (eight cards per host). UsageError, listing the names, for anything
// else.
Link parse_link(std::string_view text);

// How replicas are spread: so many on each host. "8x4" is 8 replicas on each of 4 hosts.
struct Topology {
  int per_host = 1;
  int hosts = 0;  // 0: as many as are needed
};
Topology parse_topology(std::string_view text);

// What a GPU is published to do, for predictions of a device that is not here.
struct DevicePeak {
  std::string name;        // "h100"
  std::string title;       // "NVIDIA H100 SXM"
  double flops_f32 = 0;    // per second, float32
  double flops_tf32 = 0;   // dense, tensor cores; 0: none
  double flops_16 = 0;     // dense, 16-bit inputs
  double bytes_per_s = 0;  // memory
  double memory_bytes = 0;
};
const std::vector<DevicePeak>& known_devices();
// Null if there is no such device.
const DevicePeak* find_device(std::string_view name);
// The one whose hardware name this is ("NVIDIA H200"); null if none.
const DevicePeak* find_hardware(std::string_view hardware);
std::string known_device_names();

}  // namespace lockstep
