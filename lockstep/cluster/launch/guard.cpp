#include "lockstep/cluster/launch/guard.h"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <array>
#include <csignal>

namespace lockstep::launch {
namespace {

constexpr std::size_t kMostGroups = 4096;

// The groups that the guard knows; a free place holds 0. Only the guard process writes to it, and
// it may not allocate.
struct Groups {
  std::array<pid_t, kMostGroups> ids = {};

  void change(pid_t from, pid_t to) {
    for (pid_t& id : ids) {
      if (id != from) continue;
      id = to;
      return;
    }
  }
};

// Runs in the forked child, where only async-signal-safe calls are allowed.
[[noreturn]] void guard(int pipe, Groups& groups) {
  setsid();  // what ends the launcher's group does not end the guard
  prctl(PR_SET_NAME, "lockstep-guard");
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  // Who waits for the end of the launcher's output must not wait for the guard.
  dup2(pipe, STDIN_FILENO);
  syscall(SYS_close_range, STDOUT_FILENO, ~0U, 0);
  pid_t message = 0;
  ssize_t count = 0;
  while ((count = read(STDIN_FILENO, &message, sizeof(message))) == sizeof(message) ||
         (count < 0 && errno == EINTR)) {
    if (count < 0) continue;
    if (message > 0) groups.change(0, message);
    if (message < 0) groups.change(-message, 0);
  }
  for (const pid_t id : groups.ids) {
    if (id != 0) kill(-id, SIGKILL);
  }
  _exit(0);
}

}  // namespace

Guard::Guard() {
  Groups groups;
  Pipe pipe;
  id_ = fork();
  if (id_ == 0) {
    close(pipe.write.get());
    guard(pipe.read.get(), groups);
  }
  if (id_ < 0) fail_with_errno("the guard of the workers cannot be started");
  pipe_ = std::move(pipe.write);
}

Guard::~Guard() {
  pipe_.close();
  while (waitpid(id_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guard::remove(pid_t group) {
  const pid_t message = -group;
  // Fails if somebody has killed the guard; the workers then still end with the launcher.
  static_cast<void>(!write(pipe_.get(), &message, sizeof(message)));
}

}  // namespace lockstep::launch
