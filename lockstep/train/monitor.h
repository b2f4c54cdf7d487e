// Monitor: watches one number of the logs and knows when it got better.
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

  // UsageError, with the names there will be, where the logs will not hold the number.
  void expect_in(const FitInfo& info) const;
  double read(const Logs& logs) const { return logs.at(name_); }
  // Whether a value is better than another, or than the best, by more than min_delta; NaN never is.
  // Anything else is better than no best.
  bool better(double value, double than) const;
  bool improves(double value) const;
  void keep(double value) { best_ = value; }
  const std::optional<double>& best() const { return best_; }
  void set_best(std::optional<double> best) { best_ = best; }
  const std::string& name() const { return name_; }

  // The best value, with what it is a value of.
  nlohmann::json save_state() const;
  // Takes the best value over, unless it is one of another number or mode: then there is none yet,
  // and false is the answer. Earlier versions saved the value alone, as `best`. DataError where the
  // state is damaged.
  bool restore_state(const nlohmann::json& state);
  // A count that a callback saved beside it; DataError where it is none.
  std::int64_t count_of(const nlohmann::json& state, const char* key) const;

 private:
  std::string callback_;
  std::string name_;
  bool more_is_better_;
  double min_delta_;
  std::optional<double> best_;
};

}  // namespace lockstep
