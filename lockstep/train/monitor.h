// Monitor: watches one number of the logs and detects when it improves.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "lockstep/train/callback.h"

namespace lockstep {

class Monitor {
 public:
  // `callback` is for messages. UsageError for a mode that is not "min", "max" or "auto".
  Monitor(std::string callback, std::string name, const std::string& mode, double min_delta = 0.0);

  // UsageError, listing the available names, if the logs will not contain the number.
  void expect_in(const FitInfo& info) const;
  double read(const Logs& logs) const { return logs.at(name_); }
  // Whether a value is better than another, or than the best, by more than min_delta. NaN never is;
  // any other value improves if there is no best yet.
  bool better(double value, double than) const;
  bool improves(double value) const;
  void keep(double value) { best_ = value; }
  const std::optional<double>& best() const { return best_; }
  void set_best(std::optional<double> best) { best_ = best; }
  const std::string& name() const { return name_; }

  // The best value, with the monitored name and the mode.
  nlohmann::json save_state() const;
  // Restores the best value. If it was saved for another name or mode, there is no best yet, and
  // the result is false. Earlier versions saved only the value, as `best`. DataError if the state
  // is damaged.
  bool restore_state(const nlohmann::json& state);
  // A count that a callback saved along with it; DataError if it is not a count.
  std::int64_t count_of(const nlohmann::json& state, const char* key) const;

 private:
  std::string callback_;
  std::string name_;
  bool more_is_better_;
  double min_delta_;
  std::optional<double> best_;
};

}  // namespace lockstep
