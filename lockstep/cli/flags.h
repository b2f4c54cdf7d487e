// The commands of the program and their flags, on top of CLI11. Only flags.cpp includes CLI11,
// which takes seconds to compile.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace lockstep::cli {

// Says what is wrong with a flag's value ("" if nothing is), and may rewrite it in canonical form.
using Check = std::function<std::string(std::string& text)>;

// Accepts one of these words.
Check one_of(std::vector<std::string> words);

// A flag that was added; refines it.
class Flag {
 public:
  explicit Flag(CLI::Option* option) : option_(option) {}
  Flag& check(const Check& check);
  Flag& capture_default_str();  // the help shows the target's current value
  Flag& delimiter(char between);
  Flag& required();

 private:
  CLI::Option* option_;
};

// The flags that the user typed: "--epochs".
using GivenFlags = std::set<std::string>;

// A reference to a command, which the program owns.
class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}

  // A name without dashes is a positional argument. The target must outlive the parsing.
  Flag add_option(const std::string& name, std::string& target, const std::string& help);
  Flag add_option(const std::string& name, int& target, const std::string& help);
  Flag add_option(const std::string& name, std::int64_t& target, const std::string& help);
  Flag add_option(const std::string& name, std::uint64_t& target, const std::string& help);
  Flag add_option(const std::string& name, double& target, const std::string& help);
  Flag add_option(const std::string& name, std::optional<double>& target, const std::string& help);
  Flag add_option(const std::string& name, std::vector<int>& target, const std::string& help);
  Flag add_option(const std::string& name, std::vector<std::string>& target,
                  const std::string& help);
  Flag add_flag(const std::string& name, bool& target, const std::string& help);

  // Text below the list of flags in the command's help.
  void footer(const std::string& text);
  // What the command does; called by Program::parse if the command is named.
  void callback(std::function<void()> run);
  GivenFlags given() const;

 private:
  CLI::App* app_;
};

// Wrong flags; the message is one line.
class WrongFlags : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Program {
 public:
  Program(const std::string& help, const std::string& name, const std::string& version);
  ~Program();

  Command add_command(const std::string& name, const std::string& help);
  std::vector<std::string> commands() const;
  // What the user types behind "--" after this command is not parsed but stored as it is. The
  // target must outlive the parsing.
  void take_rest(const std::string& command, std::vector<std::string>& target);
  // Runs the named command, or prints the help or version. Throws WrongFlags, and what the command
  // throws.
  void parse(int argc, char** argv);

 private:
  std::unique_ptr<CLI::App> app_;
  std::map<std::string, std::vector<std::string>*> rests_;  // by command
};

const char* cli11_version();

}  // namespace lockstep::cli
