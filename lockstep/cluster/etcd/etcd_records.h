// What a job keeps in etcd: its keys, and the records in them (JSON).
//
//   lockstep/<job>/generation             GenerationRecord: the newest generation
//   lockstep/<job>/committed/<key>        what commit() wrote
//   lockstep/<job>/g/<generation>/members/<worker>   MemberRecord, bound to the worker's lease
//                                /formed             FormedRecord: all have joined
//                                /left/<worker>      this worker went, which is no failure
//                                /failure            the first failure
//                                /store/<key>        the store
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/failure.h"

namespace lockstep {

class EtcdKeys {
 public:
  explicit EtcdKeys(const std::string& job) : root_("lockstep/" + job + "/") {}
  const std::string& root() const { return root_; }
  std::string generation() const { return root_ + "generation"; }
  std::string committed(const std::string& key) const { return root_ + "committed/" + key; }
  // The keys of all generations before this one are from oldest() up to, not including, of(it).
  std::string oldest() const { return root_ + "g/"; }
  std::string of(std::uint64_t generation) const;
  std::string member(std::uint64_t generation, int worker) const;
  std::string members(std::uint64_t generation) const { return of(generation) + "members/"; }
  std::string left(std::uint64_t generation, int worker) const;
  std::string formed(std::uint64_t generation) const { return of(generation) + "formed"; }
  std::string failure(std::uint64_t generation) const { return of(generation) + "failure"; }
  std::string store(std::uint64_t generation, const std::string& key) const;

 private:
  std::string root_;
};

struct GenerationRecord {
  std::uint64_t number = 0;
  // Place i is for worker places[i] of generation `previous`; -1: for a newcomer.
  std::uint64_t previous = 0;
  std::vector<int> places;
};

struct MemberRecord {
  std::string identity;
  std::string address;
  int port = 0;      // where it listens for heartbeats
  bool any = false;  // any other place would do: who wants this one gets it
};

struct FormedRecord {
  struct Place {
    MemberRecord member;
    std::int64_t revision = 0;  // in which its member key was created
  };
  std::vector<Place> places;
  std::string ring_key;  // with which the members know each other
};

std::string to_text(const GenerationRecord& record);
std::string to_text(const MemberRecord& record);
std::string to_text(const FormedRecord& record);
std::string to_text(const Failure& failure);
// Nothing where the text is no such record.
std::optional<GenerationRecord> generation_record(const std::string& text);
std::optional<MemberRecord> member_record(const std::string& text);
std::optional<FormedRecord> formed_record(const std::string& text);
std::optional<Failure> failure_record(const std::string& text);

}  // namespace lockstep
