// Any bytes read as a run's record give options that a run can resume with, or a DataError or
// UsageError.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/cli/run_record.h"
#include "lockstep/cli/train_options.h"

namespace {

// A file in memory with these bytes; its path is valid during its lifetime.
class MemoryFile {
 public:
  MemoryFile(const std::uint8_t* data, std::size_t size) : descriptor_(memfd_create("record", 0)) {
    if (descriptor_ < 0 || write(descriptor_, data, size) != static_cast<ssize_t>(size)) abort();
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep::cli;
  const MemoryFile file(data, size);
  try {
    const auto record = read_record(file.path());
    if (!record) abort();  // the file exists
    const TrainOptions options =
        resumed_options(record_part(*record, "options", file.path()), {}, {}, file.path());
    if (!settings_json(options).is_object()) abort();
  } catch (const lockstep::DataError&) {
  } catch (const lockstep::UsageError&) {
  }
  return 0;
}
