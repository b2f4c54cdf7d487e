#include "lockstep/cluster/launch/process.h"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <sstream>

namespace lockstep::launch {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> result;
  for (const std::string& word : words) result.push_back(const_cast<char*>(word.c_str()));
  result.push_back(nullptr);
  return result;
}

// All that the child needs, prepared before the fork: another thread may hold the allocator's lock.
struct ChildPlan {
  const char* program;
  char* const* arguments;
  char* const* environment;
  const cpu_set_t* affinity;  // null: unchanged
  pid_t launcher;
  int guard, input, out, err, inherited, failed;
  bool outlives;
};

// What the launcher's parent ignores (nohup) stays ignored. The launcher ignores SIGPIPE, and so
// does a worker that outlives it: nobody reads any more what that one writes.
void default_signals(bool outlives) {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  if (!outlives) sigaction(SIGPIPE, &action, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Runs in the forked child, where only async-signal-safe calls are allowed.
[[noreturn]] void become(const ChildPlan& plan) {
  setsid();
  if (plan.guard >= 0) {
    const pid_t own = getpid();
    static_cast<void>(!write(plan.guard, &own, sizeof(own)));
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != plan.launcher) raise(SIGKILL);  // it has ended meanwhile
  }
  const int input = plan.input >= 0 ? plan.input : open("/dev/null", O_RDONLY | O_CLOEXEC);
  bool ready = dup2(input, STDIN_FILENO) == STDIN_FILENO && dup2(plan.out, STDOUT_FILENO) >= 0 &&
               dup2(plan.err, STDERR_FILENO) >= 0;
  if (plan.inherited >= 0) ready = ready && fcntl(plan.inherited, F_SETFD, 0) == 0;
  // If the system refuses (a container whose cores changed), the worker runs where it may.
  if (plan.affinity != nullptr) sched_setaffinity(0, sizeof(*plan.affinity), plan.affinity);
  default_signals(plan.outlives);
  if (ready) execve(plan.program, plan.arguments, plan.environment);
  const int cause = errno;
  static_cast<void>(!write(plan.failed, &cause, sizeof(cause)));
  _exit(127);
}

cpu_set_t core_set(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(static_cast<std::size_t>(core), &set);
  return set;
}

void unblock(const Descriptor& descriptor) {
  fcntl(descriptor.get(), F_SETFL, fcntl(descriptor.get(), F_GETFL) | O_NONBLOCK);
}

bool executable(const std::string& file) {
  struct stat status = {};
  return stat(file.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         access(file.c_str(), X_OK) == 0;
}

}  // namespace

Process start_process(const ProcessOptions& options) {
  Pipe out;
  Pipe err;
  Pipe failed;  // closed by exec; a child that could not exec writes errno
  const std::vector<char*> arguments = pointers(options.arguments);
  const std::vector<char*> environment = pointers(options.environment);
  const cpu_set_t affinity = core_set(options.affinity);
  const ChildPlan plan = {.program = options.program.c_str(),
                          .arguments = arguments.data(),
                          .environment = environment.data(),
                          .affinity = options.affinity.empty() ? nullptr : &affinity,
                          .launcher = getpid(),
                          .guard = options.guard,
                          .input = options.input,
                          .out = out.write.get(),
                          .err = err.write.get(),
                          .inherited = options.inherited,
                          .failed = failed.write.get(),
                          .outlives = options.outlives};
  Process process;
  process.id = fork();
  if (process.id == 0) become(plan);
  if (process.id < 0) fail_with_errno("a worker cannot be started");
  failed.write.close();
  int cause = 0;
  ssize_t count = 0;
  do {
    count = read(failed.read.get(), &cause, sizeof(cause));
  } while (count < 0 && errno == EINTR);
  if (count == sizeof(cause)) {
    waitpid(process.id, nullptr, 0);
    fail<UsageError>("program {} cannot be executed: {}", options.program,
                     std::generic_category().message(cause));
  }
  process.ended = Descriptor(static_cast<int>(syscall(SYS_pidfd_open, process.id, 0)));
  if (!process.ended) {
    const int error = errno;
    process.signal(SIGKILL);
    waitpid(process.id, nullptr, 0);
    errno = error;
    fail_with_errno("a worker cannot be observed");
  }
  process.out = std::move(out.read);
  process.err = std::move(err.read);
  unblock(process.out);
  unblock(process.err);
  return process;
}

void Process::signal(int number) const {
  if (id > 0) kill(-id, number);
}

End reap(Process& process) {
  // Until it is reaped, no other process or group can get its number.
  process.signal(SIGKILL);
  int status = 0;
  while (waitpid(process.id, &status, 0) < 0 && errno == EINTR) {
  }
  process.id = -1;
  if (WIFSIGNALED(status)) return {.signal = WTERMSIG(status)};
  return {.code = WEXITSTATUS(status)};
}

std::string find_program(const std::string& name, const std::string& path) {
  struct stat status = {};
  if (name.find('/') != std::string::npos) {
    require(stat(name.c_str(), &status) == 0, "program {}: there is no such file", name);
    require(executable(name), "program {}: this is not an executable file", name);
    return name;
  }
  std::istringstream folders(path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string file = (folder.empty() ? "." : folder) + "/" + name;
    if (executable(file)) return file;
  }
  require(stat(name.c_str(), &status) != 0,
          "program {}: it was not found in PATH; for the file in this folder write ./{}", name,
          name);
  fail<UsageError>("program {}: it was not found in PATH", name);
}

}  // namespace lockstep::launch
