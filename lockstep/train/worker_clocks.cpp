#include "lockstep/train/worker_clocks.h"

#include <algorithm>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/profile/recorder.h"

namespace lockstep {

WorkerClocks::WorkerClocks(int worker, Clock clock)
    : worker_(worker), clock_(clock ? std::move(clock) : now_ns) {}

void WorkerClocks::measure(const Exchange& exchange, int rounds) {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  std::int64_t before = clock_();
  exchange("");  // from here on, what is told was true after `before`
  for (int round = 0; round < rounds; ++round) {
    const std::int64_t begin = clock_();
    const std::vector<std::string> all = exchange(std::to_string(begin));
    const std::int64_t end = clock_();
    ensure(!all.empty() && !all.front().empty(), "[clocks] the chief told no time");
    const auto chief = static_cast<double>(std::stoll(all.front()));
    low = std::max(low, chief - static_cast<double>(end));
    high = std::min(high, chief - static_cast<double>(before));
    before = begin;
  }
  if (worker_ == 0) low = high = 0;
  offsets_.push_back(
      {.at_ns = before, .ns = (low + high) / 2, .error_ns = std::max(0.0, (high - low) / 2)});
}

double WorkerClocks::on_chief(std::int64_t ns) const {
  const auto time = static_cast<double>(ns);
  if (offsets_.empty()) return time;
  const OffsetToChief& first = offsets_.front();
  const OffsetToChief& last = offsets_.back();
  const auto between = static_cast<double>(last.at_ns - first.at_ns);
  if (between <= 0) return time + last.ns;
  const double drift = (last.ns - first.ns) / between;
  return time + first.ns + drift * (time - static_cast<double>(first.at_ns));
}

double WorkerClocks::error_ns() const {
  double most = 0;
  for (const OffsetToChief& offset : offsets_) most = std::max(most, offset.error_ns);
  return most;
}

}  // namespace lockstep
