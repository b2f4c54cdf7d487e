// The folder of a run: its location, its lock and its files.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace lockstep::cli {

// Locks a folder for this process, with a lock on the file .lock in it. The system releases the
// lock when the process ends, however that happens.
class FolderLock {
 public:
  // UsageError if another process holds the lock; DataError if the folder cannot be locked at all.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&&) = delete;

 private:
  int descriptor_;
};

// Whether a process holds the lock of this folder. What cannot be told counts as held.
bool is_locked(const std::filesystem::path& folder);

inline constexpr const char* kLastCheckpoint = "checkpoint.safetensors";
inline constexpr const char* kBestCheckpoint = "best.safetensors";  // written with --save-best

class RunFolder {
 public:
  // --run-dir, or the folder of the run or checkpoint that --resume names, or runs/<date and time>.
  // Creates nothing yet, but locks a folder that is resumed. UsageError if --resume does not name a
  // run, or --run-dir names a folder that is not empty.
  RunFolder(const std::string& run_dir, const std::string& resume);
  // The same run as a worker sees it that is not the chief: it reads what is resumed, and writes
  // and locks nothing.
  static RunFolder of_chief(const std::string& resume);

  // Removes a folder that was created but not kept.
  ~RunFolder();
  RunFolder(RunFolder&&) = default;
  RunFolder& operator=(RunFolder&&) = delete;

  // For such a worker: where the chief writes.
  void follow(const std::filesystem::path& path) { path_ = path; }
  // It has become the chief of a run that has begun.
  void take_over();

  // Creates and locks the folder. DataError if that fails, UsageError if another process was
  // faster.
  void create();
  // Called when the run begins: the folder stays, and runs/last points to it if it is in runs/.
  void keep();

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path checkpoint() const { return path_ / kLastCheckpoint; }
  std::filesystem::path best() const { return path_ / kBestCheckpoint; }
  std::filesystem::path metrics() const { return path_ / "metrics.csv"; }
  std::filesystem::path record() const;
  // The tuning of the input pipeline, with which a resumed run starts.
  std::filesystem::path tuning() const { return path_ / kTuningFile; }
  std::filesystem::path source_tuning() const { return source_ / kTuningFile; }

  bool resumes() const { return !source_.empty(); }
  // The checkpoint to resume from; empty if the run starts from the beginning.
  const std::filesystem::path& resumed() const { return resumed_; }
  // The folder of the run that is resumed, and its record.
  const std::filesystem::path& source() const { return source_; }
  std::filesystem::path source_record() const;

 private:
  RunFolder() = default;
  static constexpr const char* kTuningFile = "input.tuning";

  void find_source(const std::string& resume);
  void check_run_dir() const;

  std::filesystem::path path_;  // empty: create() makes a new one in runs/
  std::filesystem::path source_;
  std::filesystem::path resumed_;
  std::optional<FolderLock> lock_;
  bool made_ = false;   // created, and not yet kept
  bool reads_ = false;  // the chief writes
};

}  // namespace lockstep::cli
