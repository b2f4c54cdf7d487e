// Any text as TF_CONFIG gives nothing, a UsageError, or a place in a job that makes sense.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/cluster/address.h"
#include "lockstep/cluster/resolvers.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const auto spec = TFConfigResolver({{"TF_CONFIG", text}}).resolve();
    if (!spec) return 0;
    const bool trains = spec->role == Role::Chief || spec->role == Role::Worker;
    if (spec->workers < 1 || spec->worker < 0) std::abort();
    if (trains && spec->worker >= spec->workers) std::abort();
    if ((spec->role == Role::Chief) != (trains && spec->worker == 0)) std::abort();
    if (trains && (spec->local_worker < 0 || spec->local_worker >= spec->local_workers))
      std::abort();
    if (!spec->control_address.empty()) parse_address(spec->control_address, "again");
  } catch (const UsageError&) {
  }
  return 0;
}
