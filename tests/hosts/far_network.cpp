#include "hosts/far_network.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <stdexcept>

namespace lockstep {
namespace {

constexpr const char* kDevice = "far0";

int open_tun() {
  const int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  std::strncpy(request.ifr_name, kDevice, IFNAMSIZ - 1);
  if (fd < 0 || ioctl(fd, TUNSETIFF, &request) != 0) {
    throw std::runtime_error(fmt::format("a TUN device: {}", std::strerror(errno)));
  }
  return fd;
}

// The number of the host that a packet is for: the last byte of its address, of IPv4 or IPv6.
std::optional<std::size_t> host_of(const std::vector<char>& packet) {
  if (packet.size() < 20) return std::nullopt;
  const int version = static_cast<unsigned char>(packet[0]) >> 4;
  const std::size_t last = version == 4 ? 19 : 39;
  if (packet.size() <= last || packet[last] < 1) return std::nullopt;
  if (version == 6 && packet[24] == '\xff') return std::nullopt;  // for all of a group
  return static_cast<std::size_t>(packet[last]) - 1;
}

}  // namespace

std::string FarNetwork::missing() {
  try {
    const NetworkNamespace network;
    network.inside([] { close(open_tun()); });
    return {};
  } catch (const std::runtime_error& error) {
    return fmt::format("this system cannot have {}", error.what());
  }
}

FarNetwork::FarNetwork(const Hosts& hosts, const FarNetworkOptions& options)
    : options_(options), stop_(eventfd(0, EFD_CLOEXEC)), random_(options.seed) {
  for (int h = 0; h < hosts.count(); ++h) {
    hosts.network(h).inside([&] { devices_.push_back(open_tun()); });
    hosts.network(h).shell(
        fmt::format("ip address add {1}/24 dev {0}; ip address add {2}/64 dev {0} nodad; "
                    "ip link set {0} up",
                    kDevice, address(h), address_six(h)));
  }
  thread_ = std::thread([this] { run(); });
}

FarNetwork::~FarNetwork() {
  eventfd_write(stop_, 1);
  thread_.join();
  for (const int device : devices_) close(device);
  close(stop_);
}

std::string FarNetwork::address(int host) const {
  return fmt::format("10.78.0.{}", host + 1);
}

std::string FarNetwork::address_six(int host) const {
  return fmt::format("fd78::{}", host + 1);
}

void FarNetwork::run() {
  std::vector<pollfd> waits{{.fd = stop_, .events = POLLIN, .revents = 0}};
  for (const int device : devices_) waits.push_back({.fd = device, .events = POLLIN, .revents = 0});
  while ((waits.front().revents & POLLIN) == 0) {
    std::optional<timespec> rest;
    if (!under_way_.empty()) {
      const auto left = std::max(Clock::duration(0), under_way_.begin()->first - Clock::now());
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
      rest = timespec{.tv_sec = seconds.count(),
                      .tv_nsec = std::chrono::nanoseconds(left - seconds).count()};
    }
    if (ppoll(waits.data(), waits.size(), rest ? &*rest : nullptr, nullptr) < 0) continue;
    for (std::size_t i = 1; i < waits.size(); ++i) {
      if ((waits[i].revents & POLLIN) != 0) take(waits[i].fd);
    }
    deliver_due();
  }
}

void FarNetwork::take(int device) {
  for (;;) {
    std::vector<char> bytes(65536);
    const ssize_t size = read(device, bytes.data(), bytes.size());
    if (size <= 0) return;
    bytes.resize(static_cast<std::size_t>(size));
    const std::optional<std::size_t> to = host_of(bytes);
    if (!to || *to >= devices_.size()) continue;  // such as IPv6's search for routers
    if (std::uniform_real_distribution<>(0, 1)(random_) < options_.loss) {
      ++dropped_;
      continue;
    }
    under_way_.emplace(Clock::now() + options_.delay, Packet{*to, std::move(bytes)});
  }
}

void FarNetwork::deliver_due() {
  const Clock::time_point now = Clock::now();
  while (!under_way_.empty() && under_way_.begin()->first <= now) {
    const Packet& packet = under_way_.begin()->second;
    // A device that is full drops it, as a router would.
    if (write(devices_[packet.to], packet.bytes.data(), packet.bytes.size()) >= 0) ++delivered_;
    under_way_.erase(under_way_.begin());
  }
}

}  // namespace lockstep
