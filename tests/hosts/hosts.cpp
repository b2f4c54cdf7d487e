#include "hosts/hosts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <thread>

namespace lockstep {
namespace {

// Of no network card.
constexpr const char* kNobody = "02:00:00:00:00:99";

std::string port_of(int host) {
  return fmt::format("port{}", host);
}

// On a thread of its own, since a thread that has changed its namespace is of no other use.
void on_new_thread(const std::function<void()>& call) {
  std::exception_ptr error;
  std::thread([&] {
    try {
      call();
    } catch (...) {
      error = std::current_exception();
    }
  }).join();
  if (error) std::rethrow_exception(error);
}

[[noreturn]] void refuse(const char* what) {
  throw std::runtime_error(fmt::format("{}: {}", what, std::strerror(errno)));
}

}  // namespace

NetworkNamespace::NetworkNamespace() {
  on_new_thread([&] {
    if (unshare(CLONE_NEWNET) != 0) refuse("a network namespace");
    fd_ = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) refuse("/proc/thread-self/ns/net");
  });
}

NetworkNamespace::~NetworkNamespace() {
  close(fd_);
}

std::string NetworkNamespace::path() const {
  return fmt::format("/proc/{}/fd/{}", getpid(), fd_);
}

void NetworkNamespace::inside(const std::function<void()>& call) const {
  on_new_thread([&] {
    if (setns(fd_, CLONE_NEWNET) != 0) refuse("setns");
    call();
  });
}

std::string Hosts::missing() {
  if (geteuid() != 0) return "only root may create network namespaces";
  try {
    run_shell("command -v ip; command -v tc");
  } catch (const std::runtime_error&) {
    return "the programs ip and tc are missing: install iproute2";
  }
  try {
    Hosts two(2);
    two.limit(0, "1gbit");
    return {};
  } catch (const std::runtime_error& error) {
    return fmt::format("this system cannot have hosts in network namespaces: {}", error.what());
  }
}

Hosts::Hosts(int count, int mtu) {
  // No snooping: the bridge would drop IPv6's questions for neighbours until it has listened for a
  // while.
  std::string plug =
      "ip link add name br0 type bridge mcast_snooping 0; ip link set br0 up; ip link set lo up;";
  for (int h = 0; h < count; ++h) {
    hosts_.push_back({.network = std::make_unique<NetworkNamespace>()});
    network(h).shell(
        fmt::format("ip link set lo up; "
                    "ip link add name eth0 type veth peer name {} netns {}; "
                    "ip address add {}/24 dev eth0; ip address add {}/64 dev eth0 nodad; "
                    "ip link set eth0 mtu {} up",
                    port_of(h), switch_.path(), address(h), address_six(h), mtu));
    plug += fmt::format("ip link set {0} mtu {1} master br0; ip link set {0} up;", port_of(h), mtu);
  }
  switch_.shell(plug);
}

std::string Hosts::address(int host) const {
  return fmt::format("10.77.0.{}", host + 1);
}

std::string Hosts::address_six(int host) const {
  return fmt::format("fd77::{}", host + 1);
}

std::unique_ptr<Process> Hosts::start(int host, ProcessOptions options) const {
  options.network = network(host).fd();
  options.host_name = fmt::format("host-{}", host);
  return std::make_unique<Process>(options);
}

void Hosts::limit(int host, const std::string& rate) {
  const auto shape = [&](const std::string& device) {
    return fmt::format("tc qdisc replace dev {} root tbf rate {} burst 32k latency 50ms", device,
                       rate);
  };
  network(host).shell(shape("eth0"));
  switch_.shell(shape(port_of(host)));
}

void Hosts::cut(int host) {
  switch_.shell(fmt::format("ip link set {} nomaster", port_of(host)));
}

void Hosts::heal(int host) {
  switch_.shell(fmt::format("ip link set {} master br0", port_of(host)));
}

// Kernels without filters for traffic still let the sender believe in a wrong card.
void Hosts::cut_one_way(int from, int to) {
  std::string line;
  for (const std::string& there : {address(to), address_six(to)}) {
    line +=
        fmt::format("ip neighbour replace {} lladdr {} nud permanent dev eth0;", there, kNobody);
  }
  network(from).shell(line);
}

void Hosts::heal_one_way(int from, int to) {
  network(from).shell(fmt::format("ip neighbour del {} dev eth0; ip neighbour del {} dev eth0",
                                  address(to), address_six(to)));
}

}  // namespace lockstep
