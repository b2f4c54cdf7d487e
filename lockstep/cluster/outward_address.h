// outward_address: where a host is reached from others, if its name says nothing about that. Debian
// writes the host's own name into /etc/hosts as 127.0.1.1: a server that binds to what the name
// stands for would be reached from nowhere else, and its neighbours would tell others to find them
// at 127.0.0.1.
#pragma once

#include <string>

namespace lockstep {

// The address, "host:port", as it is, unless its host is a name that stands for this host's
// loopback interface only. Then its digits on the interface that leads outside: that of the default
// route, or else the first one. What the user writes as loopback ("localhost", "127.0.0.1") stays.
std::string outward_address(const std::string& address);

}  // namespace lockstep
