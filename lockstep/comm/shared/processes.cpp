#include "lockstep/comm/shared/processes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kLookForDeadEvery = 100ms;

// When a process was started, in the kernel's ticks; 0 if there is no such process. Field 22 of its
// stat; the second field is its name in brackets, which may contain anything.
std::uint64_t start_time_of(std::int32_t pid) {
  std::array<char, 64> path = {};
  fmt::format_to_n(path.data(), path.size() - 1, "/proc/{}/stat", pid);
  const int fd = open(path.data(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  std::array<char, 1024> text = {};
  const ssize_t length = read(fd, text.data(), text.size() - 1);
  close(fd);
  const char* at = length > 0 ? std::strrchr(text.data(), ')') : nullptr;
  for (int field = 2; at != nullptr && field < 22; ++field) at = std::strchr(at + 1, ' ');
  return at != nullptr ? std::strtoull(at + 1, nullptr, 10) : 0;
}

}  // namespace

Processes::Processes(std::span<ProcessRecord> records, int process)
    : records_(records), process_(process), pidfds_(records.size(), -1) {
  ProcessRecord& mine = record(process);
  mine.start_time = start_time_of(getpid());
  std::int32_t nobody = 0;
  require(mine.pid.compare_exchange_strong(nobody, getpid()),
          "[comm] process {} of {} has come twice: as pid {} and as pid {}", process,
          records.size(), nobody, getpid());
}

Processes::~Processes() {
  for (const int fd : pidfds_) {
    if (fd >= 0) close(fd);
  }
}

std::string Processes::name(int process) const {
  const std::int32_t pid = record(process).pid.load();
  return pid == 0 ? fmt::format("process {}", process)
                  : fmt::format("process {} (pid {})", process, pid);
}

bool Processes::is_dead(int process) {
  const std::int32_t pid = record(process).pid.load();
  if (pid == 0) return false;
  const std::lock_guard lock(mutex_);
  int& fd = pidfds_[static_cast<std::size_t>(process)];
  if (fd < 0) {
    fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    if (fd < 0) return errno == ESRCH;
    // The descriptor refers to whichever process has this pid now.
    if (start_time_of(pid) != record(process).start_time.load()) {
      close(fd);
      fd = -1;
      return true;
    }
  }
  pollfd ended{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&ended, 1, 0) == 1;
}

std::size_t ProcessBarrier::bytes(int processes) {
  return sizeof(Entered) * (static_cast<std::size_t>(processes) + 1);
}

ProcessBarrier::ProcessBarrier(std::byte* memory, Processes& processes)
    : processes_(processes),
      changes_(*reinterpret_cast<EventCount*>(memory)),
      entered_(reinterpret_cast<Entered*>(memory) + 1,
               static_cast<std::size_t>(processes.count())) {
  static_assert(sizeof(EventCount) <= sizeof(Entered));
}

void ProcessBarrier::pass(const std::string& what, std::chrono::milliseconds timeout) {
  std::atomic<std::uint64_t>& mine = entered_[static_cast<std::size_t>(processes_.process())].count;
  const std::uint64_t pass = passes_ + 1;
  const auto all_here = [&] {
    return std::ranges::all_of(entered_, [&](const Entered& e) { return e.count.load() >= pass; });
  };
  mine.store(pass);
  if (all_here()) changes_.notify();
  timeout = std::min<std::chrono::milliseconds>(timeout, 24h * 365);
  const EventCount::Clock::time_point end = EventCount::Clock::now() + timeout;
  while (!changes_.await(all_here, std::min(timeout, kLookForDeadEvery), {})) {
    const std::vector<int> dead = find_dead();
    if (all_here()) break;  // what a process did before it ended counts
    if (dead.empty() && EventCount::Clock::now() < end) continue;
    std::vector<std::string> missing;
    for (int process = 0; process < processes_.count(); ++process) {
      const bool here = entered_[static_cast<std::size_t>(process)].count.load() >= pass;
      if (dead.empty() && !here) missing.push_back(processes_.name(process));
    }
    for (const int process : dead) missing.push_back(processes_.name(process));
    mine.store(passes_);  // it no longer waits, and may come again
    fail<CommError>("[comm] {} waited to {}; {}: {}", processes_.name(processes_.process()), what,
                    dead.empty() ? fmt::format("after {} ms still missing", timeout.count())
                                 : "ended meanwhile",
                    fmt::join(missing, ", "));
  }
  passes_ = pass;
}

std::vector<int> ProcessBarrier::find_dead() const {
  std::vector<int> dead;
  for (int process = 0; process < processes_.count(); ++process) {
    if (process != processes_.process() && processes_.is_dead(process)) dead.push_back(process);
  }
  return dead;
}

}  // namespace lockstep
