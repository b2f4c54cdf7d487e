// Which worker of a job runs on which host.
#pragma once

#include <string>
#include <vector>

namespace lockstep::launch {

// The workers' host when none is named, and a host that needs no ssh.
inline constexpr const char* kHere = "localhost";

struct Host {
  std::string name;  // "b" or "user@b"
  int slots = 0;     // the most workers that it takes; 0: not said
};

// A worker's place in the job.
struct Seat {
  int worker = 0;
  std::string host = kHere;
  int local_worker = 0;  // its number among the workers of its host
  int local_workers = 1;

  bool here() const { return host == kHere; }
};

// Reads "a,b", "a:4,b:2" or "user@[fe80::1]:2" entry by entry. UsageError if an entry has no name,
// or if some say how many workers they take and others do not.
std::vector<Host> parse_hosts(const std::vector<std::string>& entries);

// Workers in blocks over the hosts, as evenly as possible or as the slots say; `workers` 0 means
// one per slot or host. UsageError if there are fewer workers than hosts or more than slots.
std::vector<Seat> seat_workers(int workers, const std::vector<Host>& hosts);

// Whether the workers are on more than one host, so that messages name it.
bool several_hosts(const std::vector<Seat>& seats);

}  // namespace lockstep::launch
