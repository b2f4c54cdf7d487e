#include "lockstep/cluster/launch/control.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/cluster/address.h"
#include "lockstep/cluster/launch/descriptor.h"

namespace lockstep::launch {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// The addresses of a name; none if it is unknown.
Addresses resolve(const std::string& host, int port, int type, int flags, std::string* why) {
  addrinfo hints{};
  hints.ai_socktype = type;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0 && why != nullptr) *why = gai_strerror(code);
  return {code == 0 ? found : nullptr, &freeaddrinfo};
}

std::string numeric(const sockaddr_storage& address, socklen_t size) {
  std::array<char, NI_MAXHOST> text{};
  const int code = getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, text.data(),
                               text.size(), nullptr, 0, NI_NUMERICHOST);
  return code == 0 ? text.data() : "";
}

// The local address from which packets to a host leave: connecting a UDP socket sends nothing.
std::string address_towards(const std::string& name) {
  const std::string host = name.substr(name.find('@') + 1);
  std::string why;
  const Addresses found = resolve(host, 9, SOCK_DGRAM, 0, &why);
  require(found != nullptr,
          "host {} is unknown ({}); if only ssh knows this name, say with --bind at which address "
          "of this host the workers reach it",
          host, why);
  for (const addrinfo* each = found.get(); each != nullptr; each = each->ai_next) {
    const Descriptor socket(::socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage local{};
    socklen_t size = sizeof(local);
    if (socket && connect(socket.get(), each->ai_addr, each->ai_addrlen) == 0 &&
        getsockname(socket.get(), reinterpret_cast<sockaddr*>(&local), &size) == 0) {
      return numeric(local, size);
    }
  }
  fail<UsageError>(
      "no interface of this host leads to {}; say with --bind at which address the workers reach "
      "it",
      host);
}

class ReservedPort final : public ControlPlane {
 public:
  explicit ReservedPort(const ControlRequest& request) {
    const PortRange ports = request.ports;
    int cause = 0;
    for (int port = ports.low; port <= ports.high && !socket_; ++port) {
      cause = listen_at(request.bind, port);
    }
    require(static_cast<bool>(socket_), "nothing can listen at {}, port {} to {}: {}", request.bind,
            ports.low, ports.high, std::generic_category().message(cause));
  }
  std::string address() const override { return address_; }

 private:
  // Returns errno, or 0.
  int listen_at(const std::string& bind_address, int port) {
    const Addresses found =
        resolve(bind_address, port, SOCK_STREAM, AI_NUMERICHOST | AI_PASSIVE, nullptr);
    require(found != nullptr, "--bind {}: this is not a numeric address, such as 10.0.0.1",
            bind_address);
    Descriptor socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_storage local{};
    socklen_t size = sizeof(local);
    if (!socket || bind(socket.get(), found->ai_addr, found->ai_addrlen) != 0 ||
        listen(socket.get(), 1) != 0 ||
        getsockname(socket.get(), reinterpret_cast<sockaddr*>(&local), &size) != 0) {
      return errno;
    }
    std::array<char, NI_MAXSERV> service{};
    getnameinfo(reinterpret_cast<const sockaddr*>(&local), size, nullptr, 0, service.data(),
                service.size(), NI_NUMERICSERV);
    address_ = with_port(bind_address, std::atoi(service.data()));
    socket_ = std::move(socket);
    return 0;
  }

  Descriptor socket_;
  std::string address_;
};

}  // namespace

std::unique_ptr<ControlPlane> reserve_control_port(const ControlRequest& request) {
  return std::make_unique<ReservedPort>(request);
}

std::string control_bind_address(const std::string& bind, const std::vector<Seat>& seats) {
  if (!bind.empty()) return bind;
  const auto far = std::ranges::find_if(seats, [](const Seat& seat) { return !seat.here(); });
  return far == seats.end() ? "127.0.0.1" : address_towards(far->host);
}

std::string with_ports(const std::string& address, PortRange ports) {
  const std::string first = with_port(address, ports.low);
  return ports.high > ports.low ? fmt::format("{}-{}", first, ports.high) : first;
}

}  // namespace lockstep::launch
