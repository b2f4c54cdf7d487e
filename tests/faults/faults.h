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

#include "hosts/process.h"
#include "temporary_folder.h"

namespace lockstep::faults {

// What happens to a worker. Kill: kill -9. Stop: it is stopped, and stays so. Pause: it is stopped
// for less than the timeout. Error: an exception of its own. Launcher: the launcher is killed.
// Clock: the wall clocks of all jump. Disk: the disk of whoever writes is full.
enum class Kind { Kill, Stop, Pause, Error, Launcher, Clock, Disk };
inline constexpr Kind kKinds[] = {Kind::Kill,     Kind::Stop,  Kind::Pause, Kind::Error,
                                  Kind::Launcher, Kind::Clock, Kind::Disk};
std::string name_of(Kind kind);

struct Case {
  Kind kind = Kind::Kill;
  std::string policy = "restart";  // of `lockstep launch --on-failure`
  bool etcd = false;               // the members are kept by an etcd, not by the launcher
  int workers = 3;
  int worker = 1;      // that it happens to
  int step = 1;        // after this step …
  double delay = 0.0;  // … and so many durations of a step
  std::string text() const;
};

// The case that a seed means. Without `with_etcd`, none has one.
Case case_of(std::uint64_t seed, bool with_etcd);
bool has_etcd();
bool has_faketime();

// What must come of it, in words: "goes on: 3 workers, the weights of an undisturbed run".
std::string expected(const Case& what);

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
  Outcome run_with_newcomer();

 private:
  struct Result {
    int code = -1;
    std::string text = {};                  // what was printed
    std::vector<std::string> results = {};  // of the workers that ended well
    double seconds = 0;
  };
  Result launch(const Case* what, int workers, const std::string& resume,
                const std::filesystem::path& folder);
  // The weights, and the losses, of a job without a fault: from the beginning, or from a step of it
  // on fewer workers.
  std::string undisturbed(int workers);
  std::string from_step(int workers, int left, std::int64_t step);

  Outcome after_full_disk(const Case& what, const Result& result,
                          const std::filesystem::path& folder, Outcome outcome);
  // Starts an etcd; its address.
  std::string etcd();

  TemporaryFolder folder_;
  std::unique_ptr<Process> etcd_;
  std::string etcd_address_;
  int jobs_ = 0;
  std::map<std::string, std::string> known_;
};

}  // namespace lockstep::faults
