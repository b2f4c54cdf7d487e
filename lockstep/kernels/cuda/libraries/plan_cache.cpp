#include "lockstep/kernels/cuda/libraries/plan_cache.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string_view>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kHeading = "lockstep plans 1";

// Only one of several processes and threads changes a file at a time. Held from construction on. If
// the lock cannot be taken, the worst case is that another process's choice is lost.
class FileLock {
 public:
  explicit FileLock(const std::string& path) {
    if (path.empty()) return;
    std::error_code error;
    const fs::path folder = fs::path(path).parent_path();
    if (!folder.empty()) fs::create_directories(folder, error);
    descriptor_ = open((path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (descriptor_ >= 0) flock(descriptor_, LOCK_EX);
  }
  ~FileLock() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace

std::optional<std::string> PlanCache::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  auto found = choices_.find(key);
  if (found == choices_.end()) {
    read();
    found = choices_.find(key);
  }
  return found == choices_.end() ? std::nullopt : std::optional(found->second);
}

std::string PlanCache::keep(const std::string& key, const std::string& value) {
  const std::lock_guard lock(mutex_);
  const FileLock file(path_);
  read();
  const auto [place, is_new] = choices_.emplace(key, value);
  if (is_new) write();
  return place->second;
}

void PlanCache::forget(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const FileLock file(path_);
  read();
  if (choices_.erase(key) > 0) write();
}

// Adds the file's choices to those known; known ones stay.
void PlanCache::read() {
  if (path_.empty()) return;
  std::ifstream file(path_);
  std::string line;
  if (!std::getline(file, line) || line != kHeading) return;
  while (std::getline(file, line)) {
    const std::size_t tab = line.find('\t');
    if (tab != std::string::npos) choices_.emplace(line.substr(0, tab), line.substr(tab + 1));
  }
}

// Writes a new file and renames it over the old one.
void PlanCache::write() const {
  if (path_.empty()) return;
  const std::string fresh = fmt::format("{}.{}", path_, getpid());
  std::error_code error;
  {
    std::ofstream file(fresh, std::ios::trunc);
    file << kHeading << '\n';
    for (const auto& [key, value] : choices_) file << key << '\t' << value << '\n';
    file.close();
    if (!file) error = std::make_error_code(std::errc::io_error);
  }
  if (!error) fs::rename(fresh, path_, error);
  if (error) fs::remove(fresh, error);
}

}  // namespace lockstep
