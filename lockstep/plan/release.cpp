#include "lockstep/plan/release.h"

#include "lockstep/graph/ops/collective.h"

namespace lockstep {

std::vector<Release> find_releases(const Graph& graph, std::span<const Instruction> instructions) {
  constexpr std::size_t kInFlight = 2;  // buckets that are handed over and not waited for
  std::vector<int> last_of;             // bucket: its last instruction so far
  std::vector<Release> releases;
  std::size_t released = 0;  // buckets
  for (int s = 0; s < static_cast<int>(instructions.size()); ++s) {
    const Instruction& instruction = instructions[static_cast<std::size_t>(s)];
    const Node& node = graph.node(instruction.node);
    if (instruction.stream == kCommunicationStream) {
      if (is_bucket(node)) last_of.push_back(s);
      if (!last_of.empty()) last_of.back() = s;
      continue;
    }
    if (is_collective(node)) releases.clear();
    if (!instruction.waits.empty() || last_of.size() <= released + kInFlight) continue;
    released = last_of.size() - kInFlight;
    releases.push_back({.at = s, .of = last_of[released - 1]});
  }
  return releases;
}

std::vector<int> last_in_use(std::span<const Instruction> instructions,
                             std::span<const Release> releases) {
  const auto count = static_cast<int>(instructions.size());
  std::vector<int> last(instructions.size());
  auto next = releases.begin();
  for (int s = 0; s < count; ++s) {
    if (instructions[static_cast<std::size_t>(s)].stream == kComputeStream) {
      last[static_cast<std::size_t>(s)] = s;
      continue;
    }
    while (next != releases.end() && next->of < s) ++next;
    last[static_cast<std::size_t>(s)] = next == releases.end() ? count : next->at - 1;
  }
  return last;
}

}  // namespace lockstep
