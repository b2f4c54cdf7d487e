// Any text gives an index whose slices fill its tensors, or a DataError.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/tensor/slice_index.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const lockstep::SliceIndex index = lockstep::parse_index(text, "input");
    // An index that was read can be written and read again.
    const lockstep::SliceIndex again = lockstep::parse_index(lockstep::index_text(index), "again");
    if (again.tensors.size() != index.tensors.size()) std::abort();
  } catch (const lockstep::DataError&) {
  }
  return 0;
}
