// Any bytes read as the progress of a run give one that is written the same again, or a DataError.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/cli/progress_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep::cli;
  const auto text = [](const ProgressFile& file) {
    return progress_json(file).dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  try {
    const ProgressFile file =
        progress_from_json({reinterpret_cast<const char*>(data), size}, "progress");
    const std::string written = text(file);
    if (text(progress_from_json(written, "written")) != written) abort();
  } catch (const lockstep::DataError&) {
  }
  return 0;
}
