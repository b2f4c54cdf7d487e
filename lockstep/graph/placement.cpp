#include "lockstep/graph/placement.h"

#include <fmt/format.h>

namespace lockstep {

std::string Placement::str() const {
  constexpr const char* kReductions[] = {"sum", "max", "min"};
  switch (kind) {
    case Kind::Replicated:
      return "Replicated";
    case Kind::Sharded:
      return is_flat() ? "Sharded(flat)" : fmt::format("Sharded({})", dim);
    case Kind::Partial:
      return fmt::format("Partial({})", kReductions[static_cast<int>(reduction)]);
    case Kind::Local:
      return "Local";
  }
  return "";
}

Placement Placements::on(std::string_view axis) const {
  const auto found = by_axis_.find(axis);
  return found == by_axis_.end() ? Placement() : found->second;
}

void Placements::set(std::string_view axis, const Placement& placement) {
  if (placement.is_replicated()) {
    by_axis_.erase(std::string(axis));
  } else {
    by_axis_.insert_or_assign(std::string(axis), placement);
  }
}

std::string Placements::str() const {
  std::string text;
  for (const auto& [axis, placement] : by_axis_) {
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", axis, placement.str());
  }
  return text;
}

}  // namespace lockstep
