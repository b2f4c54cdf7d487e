// Runs the built program as a user's shell would, in a temporary folder.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep {

struct Outcome {
  int code = -1;
  std::string out;
  std::string err;

  nlohmann::json json() const { return nlohmann::json::parse(out); }
  std::size_t error_lines() const {
    return static_cast<std::size_t>(std::count(err.begin(), err.end(), '\n'));
  }
};

class Program {
 public:
  Program() {
    std::string pattern = (std::filesystem::temp_directory_path() / "lockstep-cli-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    folder_ = pattern;
  }
  ~Program() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  std::string text(const std::string& file) const {
    std::ifstream stream(folder_ / file);
    std::ostringstream text;
    text << stream.rdbuf();
    return text.str();
  }

  // `arguments` is what a user types after "lockstep", with paths relative to folder(); `settings`
  // comes before it, such as environment variables.
  Outcome run(const std::string& arguments, const std::string& settings = "") const {
    const std::string command = "cd '" + folder_.string() + "' && " + settings +
                                " '" LOCKSTEP_BINARY_DIR "/bin/lockstep' " + arguments +
                                " >.out 2>.err </dev/null";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text(".out"), text(".err")};
  }

 private:
  std::filesystem::path folder_;
};

// The program as a background process that can be signalled. Its standard output comes through a
// pipe, so that a test waits for a line instead of sleeping.
class RunningProgram {
 public:
  RunningProgram(const Program& program, const std::vector<std::string>& arguments) {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("no pipe");
    id_ = fork();
    if (id_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      close(ends[0]);
      close(ends[1]);
      const std::filesystem::path errors = program.folder() / ".err";
      const int log = open(errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
      dup2(log, STDERR_FILENO);
      std::vector<std::string> words = {LOCKSTEP_BINARY_DIR "/bin/lockstep"};
      words.insert(words.end(), arguments.begin(), arguments.end());
      std::vector<char*> pointers;
      for (std::string& word : words) pointers.push_back(word.data());
      pointers.push_back(nullptr);
      if (chdir(program.folder().c_str()) == 0) execv(pointers[0], pointers.data());
      _exit(127);
    }
    close(ends[1]);
    output_ = ends[0];
  }
  ~RunningProgram() {
    if (id_ > 0) {
      kill(id_, SIGKILL);
      waitpid(id_, nullptr, 0);
    }
    close(output_);
  }
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;

  // Reads until the output contains `text`; false if the output ends first.
  bool wait_for(const std::string& text) {
    while (seen_.find(text) == std::string::npos) {
      char buffer[4096];
      const ssize_t count = read(output_, buffer, sizeof(buffer));
      if (count <= 0) return false;
      seen_.append(buffer, static_cast<std::size_t>(count));
    }
    return true;
  }
  void signal(int number) const { kill(id_, number); }
  // Blocks until the program's handler of a signal has run, which uninstalls itself, or until the
  // program has ended.
  void wait_until_handled(int number) const {
    const std::string status = "/proc/" + std::to_string(id_) + "/status";
    for (bool caught = true; caught;) {
      std::ifstream stream(status);
      caught = false;
      for (std::string line; std::getline(stream, line);) {
        if (!line.starts_with("SigCgt:")) continue;
        caught = (std::stoull(line.substr(7), nullptr, 16) >> (number - 1) & 1U) != 0;
      }
    }
  }
  // Waits for the program to end. Returns its exit code, or 128 + the signal that ended it, as a
  // shell does.
  int wait() {
    while (wait_for(std::string(1, '\0'))) {  // never printed, so this reads to the end
    }
    int status = 0;
    waitpid(id_, &status, 0);
    id_ = -1;
    signalled_ = WIFSIGNALED(status);
    return signalled_ ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  bool ended_by_signal() const { return signalled_; }
  const std::string& output() const { return seen_; }

 private:
  pid_t id_ = -1;
  int output_ = -1;
  bool signalled_ = false;
  std::string seen_;
};

}  // namespace lockstep
