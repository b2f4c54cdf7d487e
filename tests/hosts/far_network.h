// FarNetwork: a second network between hosts, with a delay and with loss, for kernels without
// netem. Each host has a TUN device; a thread of the test takes packets from one, keeps them for a
// while, drops some of them, and gives the others to the host that they are for.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "hosts/hosts.h"

namespace lockstep {

struct FarNetworkOptions {
  std::chrono::microseconds delay{0};  // of each packet, in one direction
  double loss = 0;                     // the share of packets that is dropped
  std::uint32_t seed = 1;
};

class FarNetwork {
 public:
  // Why this machine cannot have one, though it can have hosts; empty: it can.
  static std::string missing();

  FarNetwork(const Hosts& hosts, const FarNetworkOptions& options);
  ~FarNetwork();
  FarNetwork(const FarNetwork&) = delete;
  FarNetwork& operator=(const FarNetwork&) = delete;

  std::string address(int host) const;      // 10.78.0.1, …
  std::string address_six(int host) const;  // fd78::1, …

  std::uint64_t delivered() const { return delivered_; }
  std::uint64_t dropped() const { return dropped_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Packet {
    std::size_t to;
    std::vector<char> bytes;
  };

  void run();
  void take(int device);
  void deliver_due();

  FarNetworkOptions options_;
  std::vector<int> devices_;  // one for each host
  int stop_ = -1;             // an event that ends the thread
  std::mt19937 random_;
  // By when they are due. The delay is the same for all, so packets never overtake one another.
  std::multimap<Clock::time_point, Packet> under_way_;
  std::atomic<std::uint64_t> delivered_ = 0;
  std::atomic<std::uint64_t> dropped_ = 0;
  std::thread thread_;
};

}  // namespace lockstep
