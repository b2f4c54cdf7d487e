// The folder of a run: where it lies, who may write to it, and its files.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace lockstep::cli {

// Holds a folder for this process, through a lock on the file .lock in it, which the system gives
// up when the process ends, however that happens.
class FolderLock {
 public:
  // UsageError where another process holds it; DataError where it cannot be locked at all.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&&) = delete;

 private:
  int descriptor_;
};

inline constexpr const char* kLastCheckpoint = "checkpoint.safetensors";
inline constexpr const char* kBestCheckpoint = "best.safetensors";  // of --save-best

class RunFolder {
 public:
  // --run-dir, or the folder that --resume names or whose checkpoint it names, or runs/<date and
  // time>. Makes nothing yet, but locks a folder that is resumed. UsageError where --resume names
  // no run, or --run-dir a folder that holds something.
  RunFolder(const std::string& run_dir, const std::string& resume);

  // Removes a folder that it made and that was not kept.
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  // Makes the folder, for this process alone. DataError where that cannot be, UsageError where
  // another process was first.
  void create();
  // Called when the run begins: the folder stays, and runs/last points to it where it lies in
  // runs/.
  void keep();

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path checkpoint() const { return path_ / kLastCheckpoint; }
  std::filesystem::path best() const { return path_ / kBestCheckpoint; }
  std::filesystem::path metrics() const { return path_ / "metrics.csv"; }
  std::filesystem::path record() const;
  // What the input pipeline learned: a run that goes on begins with it.
  std::filesystem::path tuning() const { return path_ / kTuningFile; }
  std::filesystem::path source_tuning() const { return source_ / kTuningFile; }

  bool resumes() const { return !source_.empty(); }
  // The checkpoint to go on from; empty where the run begins anew.
  const std::filesystem::path& resumed() const { return resumed_; }
  // The folder that it goes on from, and its record.
  const std::filesystem::path& source() const { return source_; }
  std::filesystem::path source_record() const;

 private:
  static constexpr const char* kTuningFile = "input.tuning";

  void find_source(const std::string& resume);
  void check_run_dir() const;

  std::filesystem::path path_;  // empty: a new one in runs/, which gets its name when it is made
  std::filesystem::path source_;
  std::filesystem::path resumed_;
  std::optional<FolderLock> lock_;
  bool made_ = false;  // and not yet kept
};

}  // namespace lockstep::cli
