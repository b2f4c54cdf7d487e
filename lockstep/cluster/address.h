// Address: a host and a port, as "node1:5000", "10.0.0.1:5000" or "[fe80::1%eth0]:5000".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/comm/port_range.h"

namespace lockstep {

struct Address {
  std::string host = {};  // a name, or an address of IPv4 or IPv6, the latter without brackets
  std::uint16_t port = 0;

  // with_port(host, port)
  std::string text() const;
  bool operator==(const Address&) const = default;
};

// "host:port", with brackets around a host of IPv6.
std::string with_port(const std::string& host, int port);

// These throw UsageError; `what` is where the text comes from, for the message: "MASTER_PORT".

// An IPv6 host must have brackets: without them, its last part could be a port or not.
Address parse_address(std::string_view text, std::string_view what);
// Brackets around an IPv6 host may be missing here.
std::string parse_host(std::string_view text, std::string_view what);
// From 1 to 65535.
std::uint16_t parse_port(std::string_view text, std::string_view what);

// "29500-29600".
PortRange parse_port_range(std::string_view text, std::string_view what);
// "10.0.0.1:4711", "10.0.0.1:4711-4720" for the first free port of these, "[::1]:0" for any.
struct ListenAddress {
  std::string host = {};
  PortRange ports = {};
};
ListenAddress parse_listen_address(std::string_view text, std::string_view what);

inline constexpr const char* kPortRangeVariable = "LOCKSTEP_PORT_RANGE";

}  // namespace lockstep
