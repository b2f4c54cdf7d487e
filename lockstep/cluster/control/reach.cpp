#include "lockstep/cluster/control/reach.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <system_error>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses addresses_of(const std::string& host, int port, std::string& error) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) error = fmt::format("host \"{}\": {}", host, gai_strerror(code));
  return {code == 0 ? found : nullptr, &freeaddrinfo};
}

std::string digits_of(const sockaddr* address, socklen_t size) {
  char text[NI_MAXHOST] = "";
  getnameinfo(address, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* four = reinterpret_cast<const sockaddr_in*>(address);
    return ntohl(four->sin_addr.s_addr) >> 24 == 127;
  }
  const auto* six = reinterpret_cast<const sockaddr_in6*>(address);
  return IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
}

class Socket {
 public:
  explicit Socket(int family)
      : fd_(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// 0, or what prevented the connection.
int connect_within(const Socket& socket, const addrinfo& to,
                   std::chrono::steady_clock::time_point deadline) {
  if (connect(socket.get(), to.ai_addr, to.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return ETIMEDOUT;
    pollfd ready{.fd = socket.get(), .events = POLLOUT, .revents = 0};
    const int count = poll(&ready, 1, static_cast<int>(std::min<long>(left.count(), 60'000)));
    if (count < 0 && errno != EINTR) return errno;
    if (count <= 0) continue;
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    return error;
  }
}

}  // namespace

BindAddress resolve_to_bind(const std::string& host) {
  std::string error;
  const Addresses addresses = addresses_of(host, 0, error);
  require(addresses != nullptr, "{}: there is nothing to bind to", error);
  return {.host = digits_of(addresses->ai_addr, addresses->ai_addrlen),
          .loopback = is_loopback(addresses->ai_addr)};
}

Reached reach(const Address& to, std::chrono::steady_clock::time_point deadline) {
  std::string error;
  const Addresses addresses = addresses_of(to.host, to.port, error);
  for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) {
    const Socket socket(each->ai_family);
    const int code = socket.get() < 0 ? errno : connect_within(socket, *each, deadline);
    const std::string digits = digits_of(each->ai_addr, each->ai_addrlen);
    if (code != 0) {
      error =
          fmt::format("{}: {}", with_port(digits, to.port), std::generic_category().message(code));
      continue;
    }
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size);
    return {.target = with_port(digits, to.port),
            .local = digits_of(reinterpret_cast<sockaddr*>(&own), size)};
  }
  throw CommError(error);
}

}  // namespace lockstep
