// Any bytes read as a measured step give one that can be simulated and written again, or a
// DataError.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/explain/predict.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  try {
    const MeasuredStep step =
        measured_step_from_json({reinterpret_cast<const char*>(data), size}, "measured");
    if (to_json(step).empty()) abort();
    predict(step, {.replicas = 4,
                   .per_host = 2,
                   .samples = 8,
                   .within = parse_link("pcie4"),
                   .between = parse_link("10Gbit")});
  } catch (const DataError&) {
  }
  return 0;
}
