// PortRange: the ports that a process may listen on, where a firewall opens only some.
#pragma once

namespace lockstep {

// 0 to 0: any free one.
struct PortRange {
  int low = 0;
  int high = 0;

  bool any() const { return low == 0; }
  bool operator==(const PortRange&) const = default;
};

}  // namespace lockstep
