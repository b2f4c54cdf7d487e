// Standstill: which worker keeps a job from going on, although all of its workers are heard of.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>

#include "lockstep/comm/membership.h"

namespace lockstep {

// What is known of a worker.
struct Standing {
  std::string name = {};     // "worker 2 (host:pid 4711)"
  std::string address = {};  // of its host
  std::string gone = {};  // why nobody is in its place: "worker 2 (…) has left"; empty: it lives
  WorkerProgress progress = {};
  std::string doing = {};  // for the message: `; it was last in "step 12"`
  // Since when its progress is what it is.
  std::chrono::steady_clock::duration still{0};
};

struct Standstill {
  int worker = -1;
  std::string message = {};
};

// Names the workers that others wait for if, for longer than the limit, all of them have neither
// made progress nor waited themselves. Where all wait for one another and nothing has come to
// anybody, a link between two of them is down, and both are named; `where` is what all of them
// reach. While one plans, validates or saves, others may wait for as long as it takes.
std::optional<Standstill> find_standstill(std::span<const Standing> workers,
                                          std::chrono::milliseconds limit,
                                          const std::string& where);

}  // namespace lockstep
