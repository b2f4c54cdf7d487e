#include "hosts/process.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace lockstep {
namespace {

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// In the child, which may only make system calls: the test may have other threads.
[[noreturn]] void give_up(const char* what) {
  const char* why = strerrordesc_np(errno);
  for (const char* part : {what, ": ", why, "\n"}) {
    if (write(STDERR_FILENO, part, std::strlen(part)) < 0) break;
  }
  _exit(127);
}

void enter_namespaces(const ProcessOptions& options) {
  if (options.network >= 0 && setns(options.network, CLONE_NEWNET) != 0) give_up("setns");
  if (!options.host_name.empty()) {
    if (unshare(CLONE_NEWUTS) != 0) give_up("unshare");
    if (sethostname(options.host_name.data(), options.host_name.size()) != 0) give_up("hostname");
  }
  if (!options.hosts_file.empty()) {
    if (unshare(CLONE_NEWNS) != 0) give_up("unshare");
    if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) give_up("mount");
    if (mount(options.hosts_file.c_str(), "/etc/hosts", nullptr, MS_BIND, nullptr) != 0) {
      give_up("mount of /etc/hosts");
    }
  }
}

}  // namespace

Process::Process(const ProcessOptions& options) {
  std::vector<std::string> command = options.command;
  const char* path = std::getenv("PATH");
  std::vector<std::string> environment{std::string("PATH=") + (path != nullptr ? path : "")};
  for (const auto& [name, value] : options.environment) environment.push_back(name + "=" + value);
  const std::vector<char*> arguments = pointers_to(command);
  const std::vector<char*> variables = pointers_to(environment);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  const pid_t test = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != test) _exit(127);
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    enter_namespaces(options);
    if (chdir(options.folder.c_str()) != 0) give_up(options.folder.c_str());
    execvpe(arguments[0], arguments.data(), variables.data());
    give_up(arguments[0]);
  }
  close(ends[1]);
  if (pid_ < 0) {
    close(ends[0]);
    throw std::runtime_error("no process");
  }
  reader_ = std::thread([this, pipe = ends[0]] { read_output(pipe); });
}

Process::~Process() {
  kill(SIGKILL);
  reader_.join();
}

void Process::kill(int signal) const {
  const std::lock_guard lock(mutex_);
  if (!code_) ::kill(pid_, signal);
}

std::string Process::text() const {
  const std::lock_guard lock(mutex_);
  return text_;
}

bool Process::await_text(const std::string& text, std::chrono::seconds at_most) {
  std::unique_lock lock(mutex_);
  const auto found = [&] { return text_.find(text) != std::string::npos; };
  changed_.wait_for(lock, at_most, [&] { return found() || code_; });
  return found();
}

std::optional<int> Process::await_end(std::chrono::seconds at_most) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, at_most, [&] { return code_.has_value(); });
  return code_;
}

void Process::read_output(int pipe) {
  char part[4096];
  while (true) {
    const ssize_t got = read(pipe, part, sizeof(part));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    const std::lock_guard lock(mutex_);
    text_.append(part, static_cast<std::size_t>(got));
    changed_.notify_all();
  }
  close(pipe);
  // It has ended, but keeps its number until it is reaped, under the lock that kill() takes.
  siginfo_t ended{};
  while (waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  const std::lock_guard lock(mutex_);
  int status = 0;
  waitpid(pid_, &status, 0);
  code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  changed_.notify_all();
}

void run_shell(const std::string& line, int network) {
  Process shell({.command = {"sh", "-ec", line}, .network = network});
  const std::optional<int> code = shell.await_end(std::chrono::seconds(60));
  if (code != 0) throw std::runtime_error(line + ": " + shell.text());
}

}  // namespace lockstep
