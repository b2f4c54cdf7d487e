#include "faults/cases.h"

#include <fmt/format.h>
#include <unistd.h>

#include <random>

#include "faults/job_program.h"
#include "hosts/hosts.h"
#include "sanitized.h"

namespace lockstep::faults {

std::string name_of(Kind kind) {
  switch (kind) {
    case Kind::Kill:
      return "kill";
    case Kind::KillInForward:
      return "kill-in-forward";
    case Kind::KillInCollective:
      return "kill-in-collective";
    case Kind::KillWhileSaving:
      return "kill-while-saving";
    case Kind::Stop:
      return "stop";
    case Kind::Pause:
      return "pause";
    case Kind::Error:
      return "error";
    case Kind::Launcher:
      return "launcher";
    case Kind::Clock:
      return "clock";
    case Kind::Disk:
      return "disk";
    case Kind::EtcdMember:
      return "etcd-member";
    case Kind::Cut:
      return "cut";
    case Kind::CutOneWay:
      return "cut-one-way";
  }
  return "";
}

std::string Case::text() const {
  return fmt::format("{} of worker {} of {} after step {} + {:.2f}, policy {}{}{}{}", name_of(kind),
                     worker, workers, step, delay, policy, etcd ? ", etcd" : "",
                     inward ? ", inward" : "", program.empty() ? "" : ", " + program);
}

bool Case::disturbs() const {
  if (kind == Kind::Launcher) return !etcd;
  return kind != Kind::Pause && kind != Kind::Clock && kind != Kind::EtcdMember;
}

bool has_etcd() {
  return access("/usr/bin/etcd", X_OK) == 0;
}

bool has_faketime() {
#ifdef LOCKSTEP_SANITIZED
  return false;  // both want to be loaded first
#else
  return access(kFaketime, R_OK) == 0;
#endif
}

const std::string& why_no_hosts() {
  static const std::string missing = [] {
    std::string why = Hosts::missing();
    if (why.empty() && access("/usr/bin/nsenter", X_OK) != 0) why = "nsenter is missing";
    return why;
  }();
  return missing;
}

Case case_of(std::uint64_t seed, bool with_etcd) {
  std::mt19937_64 random(seed);
  const auto pick = [&](int count) {
    return static_cast<int>(random() % static_cast<unsigned>(count));
  };
  Case what;
  what.kind = static_cast<Kind>(pick(kKinds));
  const char* const policies[] = {"restart", "restart", "shrink", "shrink", "stop"};
  what.policy = policies[pick(5)];
  what.workers = 2 + pick(2);
  what.worker = pick(what.workers);
  what.step = 1 + pick(kSteps - 2);
  what.delay = static_cast<double>(pick(1000)) / 500;
  what.etcd = pick(3) == 0 && with_etcd;
  const bool inward = pick(2) == 0;
  if (what.kind == Kind::EtcdMember) what.etcd = true;
  if (what.kind == Kind::EtcdMember && !with_etcd) what = {.kind = Kind::Kill};
  if (what.on_hosts() && !why_no_hosts().empty()) what.kind = Kind::KillInForward;
  if (what.kind == Kind::Clock && !has_faketime()) what.kind = Kind::Pause;
  // Beside etcd, workers listen to one another.
  what.inward = inward && what.kind == Kind::CutOneWay && !what.etcd;
  // It is caught waiting in one of the next steps.
  if (what.kind == Kind::KillInCollective) what.step = 1 + what.step % (kSteps - 12);
  if (what.kind == Kind::Disk || what.kind == Kind::KillWhileSaving) {
    what.worker = 0;                            // who writes
    what.step = 5 + what.step % (kSteps - 10);  // after the first checkpoint, before the last
  }
  return what;
}

std::string expected(const Case& what) {
  if (what.kind == Kind::Launcher && !what.etcd) return "all workers end";
  if (!what.disturbs()) return "nothing: the weights of an undisturbed run";
  if (what.kind == Kind::Disk) return "all workers end; the checkpoint before is whole";
  if (what.stops()) return "the job ends with an error that names the worker";
  return what.policy == "restart"
             ? "goes on, with the weights of an undisturbed run"
             : "goes on, with the weights of a run on one worker less from the same state";
}

}  // namespace lockstep::faults
