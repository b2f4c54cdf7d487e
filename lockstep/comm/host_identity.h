// Which processes are on one host: they can share memory and see one another's process numbers.
#pragma once

#include <string>

namespace lockstep {

// The same text for two processes on one host. Processes in different containers, or in different
// network or process namespaces, count as being on different hosts.
std::string host_identity();

}  // namespace lockstep
