// Faults: jobs of several workers with a fault at a random moment, and what must come of each.
//
// A job trains a small model (worker.cpp) for 30 steps under `lockstep launch`. What must come out
// is known from jobs without a fault: the weights, bit by bit, and every sample once an epoch.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "faults/cases.h"
#include "faults/etcd_members.h"
#include "hosts/process.h"
#include "temporary_folder.h"

namespace lockstep::faults {

struct Outcome {
  std::string wrong = {};   // what differs from what is expected; empty: nothing
  double seconds_lost = 0;  // from the failure to the first step after it
  double seconds = 0;       // of the whole job
};

// Runs cases, and the undisturbed jobs that they are compared with, once each.
class Jobs {
 public:
  Outcome run(const Case& what);
  // Two workers, to which a third one comes while they train.
  Outcome run_with_newcomer(bool with_etcd);

 private:
  struct Result {
    int code = -1;
    std::string text = {};                  // what was printed
    std::vector<std::string> results = {};  // of the workers that ended well
    double seconds = 0;
  };
  // A job that is being run: where, and on which hosts.
  struct Place {
    std::filesystem::path folder;
    std::unique_ptr<Hosts> hosts;
    std::unique_ptr<EtcdMembers> etcd;  // of this job alone
  };
  Result launch(const Case& what, const std::string& resume, const std::filesystem::path& folder,
                bool with_fault = true);
  Place place_for(const Case& what, const std::filesystem::path& folder) const;
  std::vector<std::string> command_of(const Case& what, const Place& place,
                                      const std::map<std::string, std::string>& environment);
  // Does to the job what its worker cannot do itself.
  void act(const Case& what, const Place& place, Process& job);
  // The weights, and the losses, of a job without a fault: from the beginning, or from a step of it
  // on fewer workers.
  std::string undisturbed(int workers, const std::string& program);
  std::string from_step(int workers, int left, std::int64_t step);

  Outcome after_full_disk(const Case& what, const Result& result,
                          const std::filesystem::path& folder, Outcome outcome);
  // What differs in the results of those that ended well.
  std::string compare(const Case& what, const Result& result, Outcome& outcome);
  // Of one member, or of three.
  EtcdMembers& etcd(int members);

  TemporaryFolder folder_;
  std::map<int, std::unique_ptr<EtcdMembers>> etcd_;
  int jobs_ = 0;
  std::map<std::string, std::string> known_;
};

}  // namespace lockstep::faults
