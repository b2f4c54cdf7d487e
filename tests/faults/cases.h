// Case: a job with a fault at some moment, and what must come of it.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::faults {

// What happens to a worker. Kill: kill -9 at any moment; or while it computes the forward pass,
// while it waits for others in a collective, while it writes a checkpoint. Stop: it is stopped, and
// stays so. Pause: it is stopped for less than the timeout. Error: an exception of its own.
// Launcher: the launcher is killed. Clock: the wall clocks of all jump. Disk: the disk of whoever
// writes is full. EtcdMember: one of three members of the etcd is killed. Cut: the host of the
// worker is unplugged. CutOneWay: what it sends to those who listen to its heartbeats vanishes, or
// what they send to it.
enum class Kind {
  Kill,
  KillInForward,
  KillInCollective,
  KillWhileSaving,
  Stop,
  Pause,
  Error,
  Launcher,
  Clock,
  Disk,
  EtcdMember,
  Cut,
  CutOneWay
};
inline constexpr int kKinds = 13;
// "kill-in-forward"
std::string name_of(Kind kind);

struct Case {
  Kind kind = Kind::Kill;
  std::string policy = "restart";  // of `lockstep launch --on-failure`
  bool etcd = false;               // the members are kept by an etcd, not by the launcher
  int workers = 3;
  int worker = 1;       // that it happens to
  int step = 1;         // after this step …
  double delay = 0.0;   // … and so many durations of a step
  bool inward = false;  // CutOneWay: what is sent to it
  // What the program does: "" trains; "files": every worker reads files of its own; "balance":
  // pieces by speed; "replicas": two per worker; "fits": it fails in the second of two calls of
  // fit; "sharded": with slices of parameters and slots; "evaluate", "predict": it fails there.
  std::string program = "";

  std::string text() const;
  // Whether the job is disturbed, and whether it goes on then.
  bool disturbs() const;
  bool stops() const { return policy == "stop" && disturbs(); }
  // Whether it needs hosts of its own.
  bool on_hosts() const { return kind == Kind::Cut || kind == Kind::CutOneWay; }
};

// The case that a seed means. Without `with_etcd`, none has one.
Case case_of(std::uint64_t seed, bool with_etcd);
bool has_etcd();
bool has_faketime();
// Why links cannot be cut here; empty: they can.
const std::string& why_no_hosts();

// What must come of it, in words: "goes on, with the weights of an undisturbed run".
std::string expected(const Case& what);

}  // namespace lockstep::faults
