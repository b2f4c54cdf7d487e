// How much memory this process may take.
#pragma once

#include <cstddef>
#include <filesystem>
#include <limits>
#include <string>

namespace lockstep {

inline constexpr std::size_t kUnknownMemory = std::numeric_limits<std::size_t>::max();

// What there is for this process at all: the machine's memory, or the limit of one of the control
// groups around it, whichever is least. kUnknownMemory and `root` as below.
std::size_t machine_memory(const std::filesystem::path& root = "/");

// What the machine has left, or one of the control groups around this process (a container's limit,
// a service's), whichever is least: what is taken beyond it ends in the process being killed.
// Memory that the system gives back when it is needed counts as left. kUnknownMemory where the
// system does not say. `root` is where /proc and /sys lie: another folder for tests.
std::size_t available_memory(const std::filesystem::path& root = "/");

// Throws MemoryError unless the system would give so many bytes more now, as under ulimit -v or
// strict accounting it may not. To be called before libraries that end the process where memory
// runs out in them; `what` begins the message: "[plan] cpu:0".
void expect_memory_left(std::size_t bytes, const std::string& what);
// The same for what OpenMP and oneDNN take when a step first runs: threads on all cores, code that
// is generated, operands of products that are packed.
void expect_memory_to_run(const std::string& what);

}  // namespace lockstep
