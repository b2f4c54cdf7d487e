#include "lockstep/cli/run_profile_file.h"

#include <fstream>
#include <iterator>
#include <span>

#include "lockstep/base/error.h"
#include "lockstep/cli/run_record.h"
#include "lockstep/tensor/host_file.h"

namespace lockstep::cli {

namespace fs = std::filesystem;

RunProfile read_run_profile(const fs::path& run) {
  constexpr std::uintmax_t kLargest = 100'000'000;
  const fs::path file = run / kProfileFile;
  std::error_code error;
  if (!fs::is_directory(run, error)) {
    fail<DataError>("{}: there is no such folder: name the folder of a run", run.string());
  }
  if (!fs::exists(file, error)) {
    const bool is_run = fs::exists(run / kRecordFile, error);
    fail<DataError>("{}: {}", run.string(),
                    is_run ? "the run has not recorded its times: it is still running, it failed, "
                             "or an earlier version wrote it"
                           : "it is not the folder of a run");
  }
  const auto size = fs::file_size(file, error);
  if (error || size > kLargest) fail<DataError>("{}: it is not a run's profile", file.string());
  std::ifstream stream(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  if (!stream) fail<DataError>("{}: cannot be read", file.string());
  return run_profile_from_json(text, file.string());
}

void write_run_profile(const fs::path& run, const RunProfile& profile) {
  const std::string text = to_json(profile);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  write_file(run / kProfileFile, std::span(&bytes, 1));
}

}  // namespace lockstep::cli
