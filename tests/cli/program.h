// Runs the built program as a user's shell would, in a folder of its own.
#pragma once

#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>

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

  // `arguments` as typed behind "lockstep"; paths in it are relative to folder(). `settings` of the
  // environment, as typed in front.
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

}  // namespace lockstep
