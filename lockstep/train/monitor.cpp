#include "lockstep/train/monitor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

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

bool Monitor::better(double value, double than) const {
  return more_is_better_ ? value - min_delta_ > than : value + min_delta_ < than;
}

bool Monitor::improves(double value) const {
  return best_ ? better(value, *best_) : !std::isnan(value);
}

nlohmann::json Monitor::save_state() const {
  return {{"monitor", name_},
          {"mode", more_is_better_ ? "max" : "min"},
          {"best", best_ ? nlohmann::json(*best_) : nlohmann::json(nullptr)}};
}

bool Monitor::restore_state(const nlohmann::json& state) {
  best_ = std::nullopt;
  const nlohmann::json own = save_state();
  for (const char* key : {"monitor", "mode"}) {
    if (state.value(key, own.at(key)) != own.at(key)) return false;
  }
  const nlohmann::json best = state.value("best", nlohmann::json());
  if (best.is_number()) {
    best_ = best.get<double>();
  } else if (!best.is_null()) {
    fail<DataError>("[{}] the saved state is damaged: the best {} cannot be {}", callback_, name_,
                    best.dump());
  }
  return true;
}

std::int64_t Monitor::count_of(const nlohmann::json& state, const char* key) const {
  const nlohmann::json count = state.value(key, nlohmann::json(0));
  if (!count.is_number_integer()) {
    fail<DataError>("[{}] the saved state is damaged: {} must be a whole number, not {}", callback_,
                    key, count.dump());
  }
  return count.get<std::int64_t>();
}

}  // namespace lockstep
