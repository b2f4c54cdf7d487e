// EtcdMembers: an etcd of one or several members, for jobs with faults.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "hosts/hosts.h"

namespace lockstep::faults {

class EtcdMembers {
 public:
  // On loopback, or on a host.
  EtcdMembers(int count, std::filesystem::path folder, const Hosts* hosts = nullptr, int host = 0);

  // "127.0.0.1:4711,127.0.0.1:4712"
  std::string addresses() const;
  void kill(int member);
  // Starts those that were killed again, with what they knew.
  void revive();

 private:
  void start(std::size_t member);
  bool start_all(int first_port);

  const std::filesystem::path folder_;
  const Hosts* const hosts_;
  const int host_;
  const std::string address_;
  std::vector<int> ports_;  // for clients; that for peers is the next one
  std::vector<std::unique_ptr<Process>> members_;
};

}  // namespace lockstep::faults
