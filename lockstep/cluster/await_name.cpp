#include "lockstep/cluster/await_name.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <thread>

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kFirstLookupPause = 50ms;
constexpr std::chrono::milliseconds kLongestLookupPause = 2s;

}  // namespace

NameLookup system_names() {
  return {.knows =
              [](const std::string& host) {
                addrinfo hints{};
                hints.ai_socktype = SOCK_STREAM;
                addrinfo* found = nullptr;
                if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return false;
                freeaddrinfo(found);
                return true;
              },
          .pause = [](std::chrono::milliseconds time) { std::this_thread::sleep_for(time); }};
}

std::chrono::milliseconds await_name(const std::string& host, std::chrono::milliseconds timeout,
                                     const NameLookup& names) {
  std::chrono::milliseconds waited = 0ms;
  for (auto pause = kFirstLookupPause; !names.knows(host) && waited < timeout;
       pause = std::min(2 * pause, kLongestLookupPause)) {
    const auto time = std::min(pause, timeout - waited);
    names.pause(time);
    waited += time;
  }
  return waited;
}

}  // namespace lockstep
