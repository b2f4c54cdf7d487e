#include "lockstep/cli/run_folder.h"

#include <fmt/chrono.h>

#include <ctime>

#include "lockstep/base/error.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
constexpr const char* kRuns = "runs";
constexpr const char* kLast = "last";

fs::path fresh_folder() {
  const std::string stamp = fmt::format("{:%Y%m%d-%H%M%S}", fmt::localtime(std::time(nullptr)));
  fs::path folder = fs::path(kRuns) / stamp;
  for (int i = 2; fs::exists(folder); ++i)
    folder = fs::path(kRuns) / fmt::format("{}-{}", stamp, i);
  return folder;
}

}  // namespace

RunFolder::RunFolder(const std::string& run_dir, const std::string& resume) {
  if (!resume.empty()) {
    resumed_ = fs::path(resume);
    if (fs::is_directory(resumed_)) {
      path_ = resumed_;
      resumed_ = checkpoint();
    } else {
      path_ = resumed_.parent_path();
      if (path_.empty()) path_ = ".";
    }
    require(fs::is_regular_file(resumed_), "--resume {}: there is no checkpoint {}", resume,
            resumed_.string());
    if (fs::is_symlink(path_)) path_ = path_.parent_path() / fs::read_symlink(path_);
  }
  if (!run_dir.empty()) {
    path_ = run_dir;
  } else if (resume.empty()) {
    path_ = fresh_folder();
  }
  require(!fs::exists(path_) || fs::is_directory(path_), "--run-dir {}: this is not a folder",
          path_.string());
}

void RunFolder::create() const {
  std::error_code error;
  fs::create_directories(path_, error);
  if (error)
    fail<DataError>("the run's folder {} cannot be made: {}", path_.string(), error.message());
  if (path_.parent_path() != kRuns) return;
  // A new link renamed over the old one: there is never a moment without a last run.
  const fs::path link = fs::path(kRuns) / kLast;
  const fs::path fresh = fs::path(kRuns) / fmt::format(".{}-{}", kLast, path_.filename().string());
  fs::remove(fresh, error);
  fs::create_directory_symlink(path_.filename(), fresh, error);
  if (!error) fs::rename(fresh, link, error);
  if (error) fs::remove(fresh, error);
}

}  // namespace lockstep::cli
