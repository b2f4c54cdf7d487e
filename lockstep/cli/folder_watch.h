// FolderWatch: waits until something in a folder may have changed. What this host changes is
// noticed at once (inotify); what others change in a folder on a network, within a second, because
// wait() returns at least that often.
#pragma once

#include <filesystem>

namespace lockstep::cli {

class FolderWatch {
 public:
  // The folder need not exist yet.
  explicit FolderWatch(std::filesystem::path folder);
  ~FolderWatch();
  FolderWatch(const FolderWatch&) = delete;
  FolderWatch& operator=(const FolderWatch&) = delete;

  // Returns after a change since the last call, after a second, or when a signal comes.
  void wait();

 private:
  void watch_nearest();

  std::filesystem::path folder_;
  int descriptor_;  // of inotify; -1: there is none, and wait() always takes a second
  int watched_ = -1;
};

}  // namespace lockstep::cli
