// The table of causes: what was put into a run, what it cost, and what `explain` found.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lockstep/explain/explanation.h"

namespace lockstep {

// A run as it was explained.
struct ExplainedTime {
  double seconds = 0;
  std::map<Cause, double> lost = {};
};

// A run without the cause, and one with it.
struct CauseTurn {
  ExplainedTime without;
  ExplainedTime with;
};

class CauseTable {
 public:
  CauseTable();

  // The cost is the difference of the runs; no cause is expected of a clean run. What grew by a
  // twentieth of the time is named; each expected cause must be, and no other.
  void row(const std::string& what, const std::vector<Cause>& expected,
           const std::vector<CauseTurn>& turns);
  // A cost that is known from elsewhere, in seconds of each run, against one cause of the runs
  // themselves.
  void row(const std::string& what, Cause cause, const std::vector<double>& costs,
           const std::vector<ExplainedTime>& runs);
  // What a clean run was advised to do, which should be nothing.
  void advice(const std::string& what, const std::string& advised);
  void missing(const std::string& what, const std::string& why);

  // Says how many rows are as expected, and is the exit code: 0 if all are.
  int end() const;

 private:
  void print(const std::string& what, double cost, double found, const std::string& named,
             bool good);

  int rows_ = 0;
  int wrong_ = 0;
};

double median_of_runs(std::vector<double> values);

}  // namespace lockstep
