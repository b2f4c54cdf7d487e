#include "lockstep/cluster/address.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/cluster/in_quotes.h"

namespace lockstep {
namespace {

constexpr std::size_t kMaxHostLength = 255;  // DNS allows no longer names

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_letter_or_digit(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool is_hex(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

bool is_name(std::string_view host) {
  return !host.empty() && host.front() != '-' && std::ranges::all_of(host, [](char c) {
    return is_letter_or_digit(c) || c == '-' || c == '.' || c == '_';
  });
}

// Whether the characters are those of an IPv6 address, maybe with a zone: "fe80::1%eth0". What they
// mean is for the system to say when it connects.
bool is_v6(std::string_view host) {
  const auto zone = host.find('%');
  const std::string_view number = host.substr(0, zone);
  if (std::ranges::count(number, ':') < 2) return false;
  if (!std::ranges::all_of(number, [](char c) { return is_hex(c) || c == ':' || c == '.'; })) {
    return false;
  }
  return zone == std::string_view::npos || is_name(host.substr(zone + 1));
}

}  // namespace

std::string with_port(const std::string& host, int port) {
  const bool v6 = host.find(':') != std::string::npos;
  return v6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

std::string Address::text() const {
  return with_port(host, port);
}

std::uint16_t parse_port(std::string_view text, std::string_view what) {
  std::uint16_t port = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, port);
  require(error == std::errc() && stop == end && port != 0,
          "{}: {} is not a port: give a number from 1 to 65535", what, in_quotes(text));
  return port;
}

std::string parse_host(std::string_view text, std::string_view what) {
  std::string_view host = text;
  const bool brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (brackets) host = host.substr(1, host.size() - 2);
  require(host.size() <= kMaxHostLength && (is_v6(host) || (!brackets && is_name(host))),
          "{}: {} is not a host: give a name or an IP address, such as node1 or 10.0.0.1", what,
          in_quotes(text));
  return std::string(host);
}

namespace {

// The host and what is written behind the colon.
std::pair<std::string, std::string_view> split(std::string_view text, std::string_view what) {
  const auto colon = text.rfind(':');
  require(colon != std::string_view::npos && colon + 1 < text.size() && text.back() != ']',
          "{}: {} has no port: write host:port, such as node1:5000", what, in_quotes(text));
  const std::string_view host = text.substr(0, colon);
  require(host.find(':') == std::string_view::npos || host.front() == '[',
          "{}: {} could be read in two ways: write an IPv6 address with brackets, [::1]:5000", what,
          in_quotes(text));
  return {parse_host(host, what), text.substr(colon + 1)};
}

}  // namespace

Address parse_address(std::string_view text, std::string_view what) {
  auto [host, port] = split(text, what);
  return {.host = std::move(host), .port = parse_port(port, what)};
}

ListenAddress parse_listen_address(std::string_view text, std::string_view what) {
  auto [host, ports] = split(text, what);
  if (ports == "0") return {.host = std::move(host), .ports = {}};
  if (ports.find('-') != std::string_view::npos) {
    return {.host = std::move(host), .ports = parse_port_range(ports, what)};
  }
  const int port = parse_port(ports, what);
  return {.host = std::move(host), .ports = {.low = port, .high = port}};
}

PortRange parse_port_range(std::string_view text, std::string_view what) {
  PortRange ports;
  const char* const end = text.data() + text.size();
  const auto low = std::from_chars(text.data(), end, ports.low);
  bool good = low.ec == std::errc() && low.ptr != end && *low.ptr == '-';
  if (good) {
    const auto high = std::from_chars(low.ptr + 1, end, ports.high);
    good = high.ec == std::errc() && high.ptr == end;
  }
  require(good && ports.low >= 1 && ports.low <= ports.high && ports.high <= 65535,
          "{} {}: write the lowest and the highest port, such as 29500-29600", what, text);
  return ports;
}

}  // namespace lockstep
