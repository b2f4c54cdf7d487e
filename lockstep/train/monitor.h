// Monitor: watches one number of the logs and knows when it got better.
#pragma once

#include <optional>
#include <string>

#include "lockstep/train/callback.h"

namespace lockstep {

class Monitor {
 public:
  // `callback` is for messages. UsageError for a mode that is not "min", "max" or "auto".
  Monitor(std::string callback, std::string name, const std::string& mode, double min_delta = 0.0);

  // UsageError, with the names there will be, where the logs will not hold the number.
  void expect_in(const FitInfo& info) const;
  double read(const Logs& logs) const { return logs.at(name_); }
  // Whether a value is better than the best by more than min_delta; NaN never is.
  bool improves(double value) const;
  void keep(double value) { best_ = value; }
  const std::optional<double>& best() const { return best_; }
  void set_best(std::optional<double> best) { best_ = best; }
  const std::string& name() const { return name_; }

 private:
  std::string callback_;
  std::string name_;
  bool more_is_better_;
  double min_delta_;
  std::optional<double> best_;
};

}  // namespace lockstep
