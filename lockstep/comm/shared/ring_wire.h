// RingWire: a wire between the workers of one host, over rings of bytes in memory that they share.
//
// Every ordered pair has a ring. A worker that posts a receive says so to the sender, which writes
// a message only then: what is in a ring can always be taken out of it. A thread of each worker's
// own moves bytes between the rings and the messages' memory, so that messages make progress
// whatever the worker waits for. It sleeps on a bell, which other workers ring after they have
// written or read.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/store.h"
#include "lockstep/comm/wire.h"

namespace lockstep {

struct RingWireOptions {
  Store* store = nullptr;        // where the workers find the memory
  std::string prefix = "rings";  // of the keys in the store: one for each wire
  int worker = 0;
  int workers = 1;             // of the job
  std::vector<int> host = {};  // the workers of this host, in order
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
};

// Collective over the workers of the host; CommError that names the missing ones after the timeout.
// Carries messages between them only.
std::unique_ptr<Wire> make_ring_wire(const RingWireOptions& options);

// Opens a descriptor of another process of this host, which published where it is. -1, with errno,
// where it cannot.
int open_descriptor(const std::string& path);
// Where others open a descriptor of this process.
std::string path_of_descriptor(int fd);

}  // namespace lockstep
