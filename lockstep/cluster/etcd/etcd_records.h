// What a job keeps in etcd: its keys, and the records in them (JSON).
//
//   lockstep/<job>/generation             GenerationRecord: the newest generation
//   lockstep/<job>/committed/<key>        what commit() wrote
//   lockstep/<job>/newcomers/<lease>      who waits to take part, bound to its lease
//   lockstep/<job>/g/<generation>/members/<worker>   MemberRecord, bound to the worker's lease
//                                /formed             FormedRecord: all have joined
//                                /left/<worker>      this worker went, which is no failure
//                                /failure            FailureRecord: the first failure
//                                /still/<worker>     StillRecord: it has made no progress for a
//                                while /store/<key>        the store
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/cluster/control/control_event.h"
#include "lockstep/comm/failure.h"
#include "lockstep/comm/membership.h"

namespace lockstep {

class EtcdKeys {
 public:
  explicit EtcdKeys(const std::string& job) : root_("lockstep/" + job + "/") {}
  const std::string& root() const { return root_; }
  std::string generation() const { return root_ + "generation"; }
  std::string committed(const std::string& key) const { return root_ + "committed/" + key; }
  std::string newcomers() const { return root_ + "newcomers/"; }
  std::string newcomer(std::int64_t lease) const;
  // The keys of all generations before this one are from oldest() up to, not including, of(it).
  std::string oldest() const { return root_ + "g/"; }
  std::string of(std::uint64_t generation) const;
  std::string member(std::uint64_t generation, int worker) const;
  std::string members(std::uint64_t generation) const { return of(generation) + "members/"; }
  std::string left(std::uint64_t generation, int worker) const;
  std::string formed(std::uint64_t generation) const { return of(generation) + "formed"; }
  std::string failure(std::uint64_t generation) const { return of(generation) + "failure"; }
  std::string still(std::uint64_t generation, int worker) const;
  std::string store(std::uint64_t generation, const std::string& key) const;

 private:
  std::string root_;
};

struct GenerationRecord {
  std::uint64_t number = 0;
  // Place i is for worker places[i] of generation `previous`; -1: for a newcomer.
  std::uint64_t previous = 0;
  std::vector<int> places;
  // The last step that was reached before it, and how many failures there were without another one.
  std::uint64_t furthest = 0;
  int failures = 0;
};

struct MemberRecord {
  std::string identity;
  std::string address;
  int port = 0;      // where it listens for heartbeats
  bool any = false;  // any other place would do: who wants this one gets it
  int seat = -1;     // the number that it was started with
};

struct FormedRecord {
  struct Place {
    MemberRecord member;
    std::int64_t revision = 0;  // in which its member key was created
  };
  std::vector<Place> places;
  std::string ring_key;  // with which the members know each other
};

struct FailureRecord {
  Failure failure;
  FailureCause cause = FailureCause::None;
};

struct StillRecord {
  WorkerProgress progress;
  std::chrono::milliseconds still{0};  // for how long, when this was written
};

// Whether the policy lets a job go on that has had so many failures without a new step.
bool may_go_on(OnFailure policy, const Failure& failure, int failures_without_step);

std::string to_text(const GenerationRecord& record);
std::string to_text(const MemberRecord& record);
std::string to_text(const FormedRecord& record);
std::string to_text(const FailureRecord& record);
std::string to_text(const StillRecord& record);
// Nothing where the text is no such record.
std::optional<GenerationRecord> generation_record(const std::string& text);
std::optional<MemberRecord> member_record(const std::string& text);
std::optional<FormedRecord> formed_record(const std::string& text);
std::optional<FailureRecord> failure_record(const std::string& text);
std::optional<StillRecord> still_record(const std::string& text);

}  // namespace lockstep
