// Any text is a list of nodes or of tasks per node of a bounded length, or a UsageError.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/cluster/resolvers/node_list.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto names = expand_node_list(text, "nodes");
    if (names.empty() || names.size() > kMaxNodes) std::abort();
    for (const std::string& name : names) {
      // Names without brackets stand for themselves.
      if (name.empty() || expand_node_list(name, "again") != std::vector{name}) std::abort();
      if (names.size() > 64) break;
    }
  } catch (const UsageError&) {
  }
  try {
    if (expand_tasks_per_node(text, "tasks").size() > kMaxNodes) std::abort();
  } catch (const UsageError&) {
  }
  return 0;
}
