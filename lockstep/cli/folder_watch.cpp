#include "lockstep/cli/folder_watch.h"

#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <system_error>
#include <utility>

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
constexpr int kLookEveryMs = 1000;

}  // namespace

FolderWatch::FolderWatch(fs::path folder)
    : folder_(std::move(folder)), descriptor_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
  watch_nearest();
}

FolderWatch::~FolderWatch() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

// The folder or, while it does not exist, the nearest one above it.
void FolderWatch::watch_nearest() {
  if (descriptor_ < 0) return;
  std::error_code ignored;
  fs::path nearest = fs::absolute(folder_, ignored);
  while (!fs::is_directory(nearest, ignored) && nearest != nearest.parent_path()) {
    nearest = nearest.parent_path();
  }
  // Without IN_CLOSE_WRITE: checkpoints and records are renamed into place.
  const int watched =
      inotify_add_watch(descriptor_, nearest.c_str(), IN_MOVED_TO | IN_CREATE | IN_ONLYDIR);
  if (watched_ >= 0 && watched != watched_) inotify_rm_watch(descriptor_, watched_);
  watched_ = watched;
}

void FolderWatch::wait() {
  pollfd changed = {.fd = descriptor_, .events = POLLIN, .revents = 0};
  poll(&changed, 1, kLookEveryMs);  // ignores a descriptor of -1
  alignas(inotify_event) std::array<char, 4096> events;
  while (descriptor_ >= 0 && read(descriptor_, events.data(), events.size()) > 0) {
  }
  watch_nearest();
}

}  // namespace lockstep::cli
