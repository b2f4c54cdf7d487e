// The folder of a run: where it lies, and its checkpoint.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep::cli {

class RunFolder {
 public:
  // --run-dir, or the folder of the checkpoint that --resume names, or runs/<date and time>.
  // Makes nothing yet. UsageError where --resume names no checkpoint.
  RunFolder(const std::string& run_dir, const std::string& resume);

  // Makes the folder and lets runs/last point to it where it lies in runs/. DataError where that
  // cannot be.
  void create() const;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path checkpoint() const { return path_ / "checkpoint.safetensors"; }
  std::filesystem::path metrics() const { return path_ / "metrics.csv"; }
  // The checkpoint to go on from; empty where the run begins anew.
  const std::filesystem::path& resumed() const { return resumed_; }

 private:
  std::filesystem::path path_;
  std::filesystem::path resumed_;
};

}  // namespace lockstep::cli
