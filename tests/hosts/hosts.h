// Hosts: several machines on this one, for tests: network namespaces, each with a network card that
// leads to a switch (a bridge in a namespace of its own). Addresses exist only inside of them.
//
//   Hosts hosts(3);
//   hosts.limit(1, "50mbit");
//   auto worker = hosts.start(1, {.command = {"lockstep", "train", …}});
//
// The namespaces have no names: they are held by descriptors of this process, and the programs in
// them are killed with it. However a test ends, nothing is left.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hosts/process.h"

namespace lockstep {

class NetworkNamespace {
 public:
  NetworkNamespace();  // std::runtime_error where the system refuses it
  ~NetworkNamespace();
  NetworkNamespace(const NetworkNamespace&) = delete;
  NetworkNamespace& operator=(const NetworkNamespace&) = delete;

  int fd() const { return fd_; }
  // For other programs: /proc/…/fd/….
  std::string path() const;
  // Calls the function on a thread in the namespace; descriptors that it opens stay there.
  void inside(const std::function<void()>& call) const;
  // A shell line in it, such as `ip link …`.
  void shell(const std::string& line) const { run_shell(line, fd_); }

 private:
  int fd_ = -1;
};

class Hosts {
 public:
  // Why this machine cannot have any; empty: it can.
  static std::string missing();

  // `mtu`: bytes of a packet. Network cards send 64 KB at once; a switch in software that has to
  // look at every 1,500 bytes takes time from the programs.
  explicit Hosts(int count, int mtu = 1500);

  int count() const { return static_cast<int>(hosts_.size()); }
  std::string address(int host) const;      // 10.77.0.1, …
  std::string address_six(int host) const;  // fd77::1, …
  const NetworkNamespace& network(int host) const { return *hosts_.at(index(host)).network; }

  // A program on the host. Its host name is host-0, …; options.network is set here.
  std::unique_ptr<Process> start(int host, ProcessOptions options) const;

  // Limits what the host sends and receives: "50mbit".
  void limit(int host, const std::string& rate);
  // Unplugs the host from the switch. Nobody gets an error; packets vanish.
  void cut(int host);
  void heal(int host);
  // What `from` sends to `to` vanishes, but not what comes back.
  void cut_one_way(int from, int to);
  void heal_one_way(int from, int to);

 private:
  struct Host {
    std::unique_ptr<NetworkNamespace> network;
  };
  static std::size_t index(int host) { return static_cast<std::size_t>(host); }

  NetworkNamespace switch_;
  std::vector<Host> hosts_;
};

}  // namespace lockstep
