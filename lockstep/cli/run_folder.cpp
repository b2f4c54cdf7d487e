#include "lockstep/cli/run_folder.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <fstream>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/cli/run_record.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
constexpr const char* kRuns = "runs";
constexpr const char* kLast = "last";
constexpr const char* kLock = ".lock";

std::string cause(int number) {
  return std::generic_category().message(number);
}

// Removes "." and a trailing slash, so that filename() is the last name of the path.
fs::path tidy(const fs::path& path) {
  fs::path tidied = path.lexically_normal();
  if (!tidied.has_filename() && tidied.has_parent_path()) tidied = tidied.parent_path();
  return tidied;
}

bool is_in_runs(const fs::path& path) {
  std::error_code error;
  const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  return fs::equivalent(parent, kRuns, error) || parent == kRuns;
}

bool is_run(const fs::path& folder) {
  return fs::exists(folder / kRecordFile) || fs::exists(folder / "checkpoint.safetensors");
}

bool holds_nothing(const fs::path& folder) {
  return std::ranges::all_of(fs::directory_iterator(folder),
                             [](const auto& entry) { return entry.path().filename() == kLock; });
}

// False if it exists already.
bool make_folder(const fs::path& folder) {
  std::error_code error;
  if (folder.has_parent_path()) fs::create_directories(folder.parent_path(), error);
  if (!error && mkdir(folder.c_str(), 0777) == 0) return true;
  const int number = error ? error.value() : errno;
  if (number == EEXIST && fs::is_directory(folder)) return false;
  fail<DataError>("the run's folder {} cannot be created: {}", folder.string(), cause(number));
}

// A new folder, even if another process creates one in the same second.
fs::path make_fresh_folder() {
  const std::string stamp = fmt::format("{:%Y%m%d-%H%M%S}", fmt::localtime(std::time(nullptr)));
  fs::path folder = fs::path(kRuns) / stamp;
  for (int i = 2; !make_folder(folder); ++i) {
    folder = fs::path(kRuns) / fmt::format("{}-{}", stamp, i);
  }
  return folder;
}

}  // namespace

FolderLock::FolderLock(const fs::path& folder) {
  const fs::path file = folder / kLock;
  descriptor_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) {
    fail<DataError>("the run's folder {} cannot be written to: {}", folder.string(), cause(errno));
  }
  if (flock(descriptor_, LOCK_EX | LOCK_NB) == 0) {
    const std::string process = fmt::format("{}\n", getpid());
    const bool named =
        ftruncate(descriptor_, 0) == 0 && write(descriptor_, process.data(), process.size()) > 0;
    static_cast<void>(named);  // only used in the message below
    return;
  }
  const int number = errno;
  ::close(descriptor_);
  std::string holder;
  std::getline(std::ifstream(file), holder);
  require(number != EWOULDBLOCK,
          "the run in {} is being trained by another process{}: wait for it, or give another "
          "--run-dir",
          folder.string(), holder.empty() ? "" : fmt::format(" ({})", holder));
  fail<DataError>("the run's folder {} cannot be locked: {}", folder.string(), cause(number));
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

FolderLock::FolderLock(FolderLock&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)) {}

bool is_locked(const fs::path& folder) {
  const int descriptor = ::open((folder / kLock).c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return true;
  const bool locked = flock(descriptor, LOCK_SH | LOCK_NB) != 0;
  ::close(descriptor);
  return locked;
}

RunFolder::RunFolder(const std::string& run_dir, const std::string& resume) {
  if (!resume.empty()) find_source(resume);
  if (!run_dir.empty()) {
    path_ = tidy(run_dir);
    std::error_code error;
    const bool same = !source_.empty() && fs::equivalent(path_, source_, error);
    if (same) path_ = source_;
    if (!same) check_run_dir();
  } else if (!resume.empty()) {
    path_ = source_;
  }
  if (!source_.empty() && path_ == source_) lock_.emplace(path_);
}

RunFolder RunFolder::of_chief(const std::string& resume) {
  RunFolder folder;
  folder.reads_ = true;
  if (!resume.empty()) folder.find_source(resume);
  return folder;
}

void RunFolder::find_source(const std::string& resume) {
  const fs::path named = tidy(resume);
  if (fs::is_directory(named)) {
    source_ = named;
    if (fs::is_symlink(source_)) source_ = source_.parent_path() / fs::read_symlink(source_);
    resumed_ = source_ / "checkpoint.safetensors";
    // A run that ended before its first checkpoint starts from the beginning.
    if (!fs::exists(resumed_) && fs::exists(source_record())) resumed_.clear();
  } else {
    resumed_ = named;
    source_ = named.has_parent_path() ? named.parent_path() : fs::path(".");
    if (fs::is_symlink(source_)) source_ = source_.parent_path() / fs::read_symlink(source_);
  }
  require(resumed_.empty() || fs::is_regular_file(resumed_),
          "--resume {}: there is no checkpoint {}", resume, resumed_.string());
}

void RunFolder::check_run_dir() const {
  require(path_.filename() != kLast || !is_in_runs(path_),
          "--run-dir {}: this name is reserved for the link to the last run; give another folder",
          path_.string());
  if (!fs::exists(path_)) return;
  require(fs::is_directory(path_), "--run-dir {}: this is not a folder", path_.string());
  require(!is_run(path_),
          "--run-dir {}: it already contains a run: continue it with --resume {}, or give another "
          "folder",
          path_.string(), path_.string());
  require(holds_nothing(path_),
          "--run-dir {}: this folder is not empty: give an empty or a new one", path_.string());
}

void RunFolder::create() {
  if (lock_ || reads_) return;  // a resumed run, or the chief's
  if (path_.empty()) {
    path_ = make_fresh_folder();
    made_ = true;
  } else {
    made_ = make_folder(path_);
  }
  lock_.emplace(path_);
  check_run_dir();  // another process may have used the folder since the constructor
}

void RunFolder::take_over() {
  reads_ = false;
  if (!lock_) lock_.emplace(path_);
}

void RunFolder::keep() {
  if (reads_) return;
  made_ = false;
  if (!is_in_runs(path_)) return;
  // A new link is renamed over the old one, so that runs/last always exists.
  std::error_code error;
  const fs::path link = fs::path(kRuns) / kLast;
  const fs::path fresh = fs::path(kRuns) / fmt::format(".{}-{}", kLast, path_.filename().string());
  fs::remove(fresh, error);
  fs::create_directory_symlink(path_.filename(), fresh, error);
  if (!error) fs::rename(fresh, link, error);
  if (error) fs::remove(fresh, error);
}

RunFolder::~RunFolder() {
  if (!made_ || !lock_) return;
  std::error_code ignored;
  fs::remove(path_ / kLock, ignored);
  fs::remove(path_, ignored);  // fails if something is in it, which is intended
}

fs::path RunFolder::record() const {
  return path_ / kRecordFile;
}
fs::path RunFolder::source_record() const {
  return source_ / kRecordFile;
}

}  // namespace lockstep::cli
