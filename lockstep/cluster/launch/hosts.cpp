#include "lockstep/cluster/launch/hosts.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "lockstep/base/error.h"

namespace lockstep::launch {
namespace {

constexpr int kMostSlots = 4096;

Host parse_host(const std::string& entry) {
  const std::size_t bracket = entry.find(']');
  const std::size_t colon = entry.find(':', bracket == std::string::npos ? 0 : bracket);
  Host host{.name = entry.substr(0, colon)};
  std::erase_if(host.name, [](char c) { return c == '[' || c == ']'; });
  require(!host.name.empty(), "--hosts: an entry has no name; write --hosts a,b or a:4,b:2");
  // A name that begins with a dash would be an option of ssh.
  require(!host.name.starts_with('-'), "--hosts {}: a host's name does not begin with a dash",
          entry);
  if (colon == std::string::npos) return host;
  const char* end = entry.data() + entry.size();
  const auto [rest, error] = std::from_chars(entry.data() + colon + 1, end, host.slots);
  require(error == std::errc() && rest == end && host.slots >= 1 && host.slots <= kMostSlots,
          "--hosts {}: behind the colon stands how many workers the host takes, from 1 to {}",
          entry, kMostSlots);
  return host;
}

// How many workers each host gets.
std::vector<int> blocks(int workers, const std::vector<Host>& hosts) {
  const auto count = static_cast<int>(hosts.size());
  std::vector<int> sizes;
  int left = workers;
  for (int h = 0; h < count; ++h) {
    const Host& host = hosts[static_cast<std::size_t>(h)];
    const int even = workers / count + (h < workers % count ? 1 : 0);
    sizes.push_back(host.slots > 0 ? std::min(host.slots, left) : even);
    left -= sizes.back();
  }
  return sizes;
}

}  // namespace

std::vector<Host> parse_hosts(const std::vector<std::string>& entries) {
  std::vector<Host> hosts;
  std::ranges::transform(entries, std::back_inserter(hosts), parse_host);
  const auto with = std::ranges::count_if(hosts, [](const Host& h) { return h.slots > 0; });
  require(with == 0 || with == std::ssize(hosts),
          "--hosts: {} of {} hosts say how many workers they take; let all of them or none do so",
          with, hosts.size());
  return hosts;
}

std::vector<Seat> seat_workers(int workers, const std::vector<Host>& given) {
  std::vector<Host> hosts = given;
  if (hosts.empty()) hosts.push_back({.name = kHere});
  int slots = 0;
  for (const Host& host : hosts) slots += host.slots;
  const auto count = static_cast<int>(hosts.size());
  if (workers == 0) {
    require(!given.empty(), "say how many workers to start: --workers 2");
    workers = slots > 0 ? slots : count;
  }
  require(slots == 0 || workers <= slots, "--workers {}: the hosts of --hosts take only {}",
          workers, slots);
  require(slots > 0 || workers >= count,
          "--workers {} is fewer than the {} hosts of --hosts; name fewer hosts", workers, count);
  const std::vector<int> sizes = blocks(workers, hosts);

  std::vector<Seat> seats;
  std::map<std::string, int> on_host;  // a host may be named twice
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    for (int i = 0; i < sizes[h]; ++i) {
      seats.push_back({.worker = static_cast<int>(seats.size()),
                       .host = hosts[h].name,
                       .local_worker = on_host[hosts[h].name]++});
    }
  }
  for (Seat& seat : seats) seat.local_workers = on_host[seat.host];
  return seats;
}

bool several_hosts(const std::vector<Seat>& seats) {
  return std::ranges::any_of(seats, [&](const Seat& s) { return s.host != seats.front().host; });
}

}  // namespace lockstep::launch
