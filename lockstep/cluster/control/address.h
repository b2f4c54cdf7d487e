// Addresses of control servers: "host:port", "[::1]:port", and "host:first-last" to bind to any
// port of a range.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace lockstep {

struct Endpoint {
  std::string host;
  int first_port = 0;
  int last_port = 0;
};

// UsageError where the text is no address.
Endpoint parse_endpoint(std::string_view text);
// "host:port", with brackets around IPv6 addresses.
std::string endpoint_text(const std::string& host, int port);

struct BindAddress {
  std::string host;  // in digits
  bool loopback = false;
};
// The interface's address that the host name stands for; UsageError if there is none.
BindAddress resolve_to_bind(const std::string& host);

struct Reached {
  std::string target;  // the other end, in digits: "10.0.0.1:4711"
  std::string local;   // the address of this end
};
// Connects and disconnects, to learn which addresses work. Throws CommError at the deadline, or at
// once where nobody listens.
Reached reach(const Endpoint& endpoint, std::chrono::steady_clock::time_point deadline);

}  // namespace lockstep
