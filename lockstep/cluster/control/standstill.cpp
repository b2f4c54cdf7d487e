#include "lockstep/cluster/control/standstill.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "lockstep/cluster/control/text.h"
#include "lockstep/cluster/control/waiting_circle.h"

namespace lockstep {
namespace {

bool may_take_long(const std::string& activity) {
  constexpr std::array<std::string_view, 3> kLong = {"planning", "validating", "saving"};
  return std::any_of(kLong.begin(), kLong.end(),
                     [&](std::string_view each) { return activity.starts_with(each); });
}

std::optional<Standstill> find_broken_link(std::span<const Standing> workers,
                                           const std::string& where) {
  std::vector<int> waits_for;
  std::chrono::steady_clock::duration still = std::chrono::steady_clock::duration::max();
  for (const Standing& worker : workers) {
    waits_for.push_back(worker.progress.waiting_for);
    still = std::min(still, worker.still);
  }
  const std::vector<int> circle = find_waiting_circle(waits_for);
  if (circle.empty()) return std::nullopt;
  std::string text;
  for (const int worker : circle) {
    const auto at = static_cast<std::size_t>(worker);
    text += fmt::format("{} waits for worker {}, ", workers[at].name, waits_for[at]);
  }
  const auto first = static_cast<std::size_t>(circle.front());
  const auto other = static_cast<std::size_t>(waits_for[first]);
  return Standstill{.worker = circle.front(),
                    .message = fmt::format(
                        "{}and nothing has come for {}, although all workers reach {}: look at the "
                        "network and the firewalls between {} and {}",
                        text, shown(still), where, workers[first].address, workers[other].address)};
}

}  // namespace

std::optional<Standstill> find_standstill(std::span<const Standing> workers,
                                          std::chrono::milliseconds limit,
                                          const std::string& where) {
  std::string stuck;
  std::string waiting;
  int first = -1;
  const auto add = [](std::string& list, const std::string& text) {
    list += (list.empty() ? "" : ", ") + text;
  };
  for (std::size_t i = 0; i < workers.size(); ++i) {
    const Standing& worker = workers[i];
    if (worker.gone.empty()) {
      if (worker.still <= limit) return std::nullopt;
      if (worker.progress.waiting) {
        add(waiting, fmt::format("worker {}", i));
        continue;
      }
      if (may_take_long(worker.progress.activity)) return std::nullopt;
      add(stuck, fmt::format("{} has made no progress after step {} for {}{}", worker.name,
                             worker.progress.step, shown(worker.still), worker.doing));
    } else {
      add(stuck, worker.gone);
    }
    if (first < 0) first = static_cast<int>(i);
  }
  if (stuck.empty()) return find_broken_link(workers, where);
  if (waiting.empty()) return std::nullopt;
  return Standstill{.worker = first,
                    .message = fmt::format("{}; waiting for it: {}", stuck, waiting)};
}

}  // namespace lockstep
