#include "lockstep/cluster/outward_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include "lockstep/cluster/address.h"

namespace lockstep {
namespace {

// Addresses that documents use as examples (RFC 5737, RFC 3849): only the default route leads
// there.
constexpr const char* kFarFour = "192.0.2.1";
constexpr const char* kFarSix = "2001:db8::1";

socklen_t size_of(const sockaddr& address) {
  return address.sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

std::string digits_of_address(const sockaddr& address) {
  char text[NI_MAXHOST] = "";
  getnameinfo(&address, size_of(address), text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

bool of_this_host_only(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address);
    return ntohl(four.sin_addr.s_addr) >> 24 == 127;
  }
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

using Found = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// None where the name stands for nothing.
Found look_up(const std::string& host, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  return {getaddrinfo(host.c_str(), nullptr, &hints, &found) == 0 ? found : nullptr, &freeaddrinfo};
}

bool says_loopback(const std::string& host) {
  return look_up(host, AI_NUMERICHOST) != nullptr || host.starts_with("localhost") ||
         host.ends_with(".localhost") || host == "ip6-localhost" || host == "ip6-loopback";
}

// The address from which this host would send to a far one; nothing is sent.
std::string on_route_to(const char* far) {
  const Found to = look_up(far, AI_NUMERICHOST);
  if (to == nullptr) return {};
  const int fd = socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return {};
  std::string digits;
  auto* address = reinterpret_cast<sockaddr_in6*>(to->ai_addr);
  address->sin6_port = htons(9);  // at the same place for IPv4
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  if (connect(fd, to->ai_addr, to->ai_addrlen) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
      !of_this_host_only(reinterpret_cast<sockaddr&>(own))) {
    digits = digits_of_address(reinterpret_cast<sockaddr&>(own));
  }
  close(fd);
  return digits;
}

std::string of_first_interface(int family) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> interfaces(all, &freeifaddrs);
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    const sockaddr* const address = each->ifa_addr;
    if (address == nullptr || address->sa_family != family || (each->ifa_flags & IFF_UP) == 0 ||
        of_this_host_only(*address)) {
      continue;
    }
    if (family == AF_INET6 &&
        IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr)) {
      continue;
    }
    return digits_of_address(*address);
  }
  return {};
}

}  // namespace

std::string outward_address(const std::string& address) {
  Address parsed = parse_address(address, "the address of the control plane");
  if (says_loopback(parsed.host)) return address;
  const Found found = look_up(parsed.host, 0);
  if (found == nullptr) return address;
  for (const addrinfo* each = found.get(); each != nullptr; each = each->ai_next) {
    if (of_this_host_only(*each->ai_addr)) continue;
    if (each == found.get()) return address;
    parsed.host = digits_of_address(*each->ai_addr);
    return parsed.text();
  }
  for (const std::string& own : {on_route_to(kFarFour), on_route_to(kFarSix),
                                 of_first_interface(AF_INET), of_first_interface(AF_INET6)}) {
    if (own.empty()) continue;
    parsed.host = own;
    return parsed.text();
  }
  return address;
}

}  // namespace lockstep
