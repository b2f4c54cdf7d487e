#include "hardship/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <stdexcept>

namespace lockstep::hardship {
namespace {

std::string tail_of(const std::filesystem::path& file) {
  constexpr std::size_t kMost = 20'000;
  std::ifstream stream(file, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(stream)), {});
  return text.size() > kMost ? text.substr(text.size() - kMost) : text;
}

}  // namespace

std::size_t Ended::lines() const {
  return static_cast<std::size_t>(std::count(output.begin(), output.end(), '\n'));
}

Child::Child(const std::filesystem::path& folder, const std::vector<std::string>& arguments,
             std::optional<std::uint64_t> address_space)
    : output_(folder / ".output") {
  std::vector<char*> pointers;
  static const std::string program = LOCKSTEP_BINARY_DIR "/bin/lockstep";
  pointers.push_back(const_cast<char*>(program.c_str()));
  for (const std::string& each : arguments) pointers.push_back(const_cast<char*>(each.c_str()));
  pointers.push_back(nullptr);
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("cannot create a child process");
  if (pid_ == 0) {
    const int out = open(output_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    const int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (out < 0 || in < 0 || chdir(folder.c_str()) != 0) _exit(126);
    dup2(in, 0);
    dup2(out, 1);
    dup2(out, 2);
    const rlimit most{address_space.value_or(RLIM_INFINITY), RLIM_INFINITY};
    if (address_space && setrlimit(RLIMIT_AS, &most) != 0) _exit(126);
    execv(pointers.front(), pointers.data());
    _exit(127);
  }
  descriptor_ = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  if (descriptor_ < 0) throw std::runtime_error("this system has no pidfd_open");
}

Child::~Child() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(descriptor_);
}

bool Child::ends_within(std::chrono::milliseconds time) {
  pollfd end{.fd = descriptor_, .events = POLLIN, .revents = 0};
  return poll(&end, 1, static_cast<int>(time.count())) == 1;
}

Ended Child::collect() {
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  Ended ended;
  if (WIFEXITED(status)) ended.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) ended.signal = WTERMSIG(status);
  ended.output = tail_of(output_);
  return ended;
}

Ended Child::wait(std::chrono::milliseconds limit) {
  const bool ended = ends_within(limit);
  if (!ended) kill(pid_, SIGKILL);
  Ended how = collect();
  how.hung = !ended;
  return how;
}

Ended Child::kill_after(std::chrono::milliseconds time) {
  if (!ends_within(time)) kill(pid_, SIGKILL);
  return collect();
}

}  // namespace lockstep::hardship
