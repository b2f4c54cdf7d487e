// await_name: waits for a host's name to stand for an address. Kubernetes' headless services know a
// pod by its name only a while after it was started, even the pod itself.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace lockstep {

struct NameLookup {
  // Whether the name stands for an address.
  std::function<bool(const std::string& host)> knows;
  // Waits before the next try.
  std::function<void(std::chrono::milliseconds)> pause;
};
// The system's.
NameLookup system_names();

// Returns as soon as the name is known, or after the timeout: how long that took. Whoever uses the
// name then says what is wrong with it.
std::chrono::milliseconds await_name(const std::string& host, std::chrono::milliseconds timeout,
                                     const NameLookup& names = system_names());

}  // namespace lockstep
