#include "lockstep/train/monitor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

bool more_is_better(const std::string& name) {
  for (const char* part : {"acc", "auc", "precision", "recall"}) {
    if (name.find(part) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

Monitor::Monitor(std::string callback, std::string name, const std::string& mode, double min_delta)
    : callback_(std::move(callback)),
      name_(std::move(name)),
      more_is_better_(mode == "auto" ? more_is_better(name_) : mode == "max"),
      min_delta_(std::abs(min_delta)) {
  require(mode == "auto" || mode == "min" || mode == "max",
          "[{}] mode must be 'min', 'max' or 'auto', not '{}'", callback_, mode);
}

void Monitor::expect_in(const FitInfo& info) const {
  if (std::ranges::find(info.log_names, name_) != info.log_names.end()) return;
  fail<UsageError>("[{}] there will be no '{}' to monitor; there will be: {}{}", callback_, name_,
                   fmt::join(info.log_names, ", "),
                   name_.starts_with("val_") ? " (val_… needs validation data)" : "");
}

bool Monitor::improves(double value) const {
  if (std::isnan(value)) return false;
  if (!best_) return true;
  return more_is_better_ ? value > *best_ + min_delta_ : value < *best_ - min_delta_;
}

}  // namespace lockstep
