#include "lockstep/plan/release.h"

#include <algorithm>

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
    for (int awaited : instruction.waits) {
      while (released < last_of.size() && last_of[released] <= awaited) ++released;
    }
    if (!instruction.waits.empty() || last_of.size() <= released + kInFlight) continue;
    released = last_of.size() - kInFlight;
    releases.push_back({.at = s, .of = last_of[released - 1]});
  }
  return releases;
}

std::vector<int> last_in_use(std::span<const Instruction> instructions,
                             std::span<const Release> releases) {
  const auto count = static_cast<int>(instructions.size());
  // Backwards: by what each instruction of the compute stream waits for, if it waits.
  std::vector<int> awaited(instructions.size(), -1);
  for (int s = 0; s < count; ++s) {
    for (int of : instructions[static_cast<std::size_t>(s)].waits) {
      int& most = awaited[static_cast<std::size_t>(s)];
      most = std::max(most, of);
    }
  }
  for (const Release& release : releases) {
    int& most = awaited[static_cast<std::size_t>(release.at)];
    most = std::max(most, release.of);
  }
  std::vector<int> last(instructions.size(), count);
  int done = -1;  // up to here the communication stream is done when the order gets to s
  for (int s = 0; s < count; ++s) {
    for (int of = done + 1; of <= awaited[static_cast<std::size_t>(s)]; ++of) {
      last[static_cast<std::size_t>(of)] = s - 1;
    }
    done = std::max(done, awaited[static_cast<std::size_t>(s)]);
  }
  for (int s = 0; s < count; ++s) {
    if (instructions[static_cast<std::size_t>(s)].stream == kComputeStream) {
      last[static_cast<std::size_t>(s)] = s;
    }
  }
  return last;
}

}  // namespace lockstep
