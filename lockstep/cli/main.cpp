// The program `lockstep`. Wrong flags and wrong files end with one line and code 2, failures of our
// own with code 1.
#include <fmt/core.h>

#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/cli/command.h"

namespace {

using namespace lockstep;
using namespace lockstep::cli;

int complain(const std::string& what, int code) {
  std::fflush(stdout);
  fmt::print(stderr, "lockstep: {}\n", what);
  return code;
}

// CLI11's explanations in one line.
std::string one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

// "train, bench, …"; whether `wanted` is among them.
std::string commands(CLI::App& program, const std::string& wanted, bool& found) {
  std::string names;
  for (const CLI::App* command : program.get_subcommands([](CLI::App*) { return true; })) {
    found = found || command->get_name() == wanted;
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  return names;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App program("Trains neural networks, and says where the time goes.", "lockstep");
  program.require_subcommand(1);
  program.set_version_flag("--version", LOCKSTEP_VERSION);
  add_train(program);
  add_bench(program);
  add_plan(program);
  add_devices(program);

  const std::string first = argc > 1 ? argv[1] : "";
  bool known = first.starts_with("-");
  const std::string names = commands(program, first, known);
  if (first.empty()) return complain("name a command: " + names, kWrongUse);
  if (!known) {
    return complain(fmt::format("there is no command {}; there are {}", first, names), kWrongUse);
  }
  try {
    program.parse(argc, argv);
  } catch (const CLI::Success& done) {  // --help, --version
    return program.exit(done);
  } catch (const CLI::ParseError& error) {
    return complain(one_line(error.what()) + " (see lockstep --help)", kWrongUse);
  } catch (const UsageError& error) {
    return complain(error.what(), kWrongUse);
  } catch (const DataError& error) {
    return complain(error.what(), kWrongUse);
  } catch (const std::bad_alloc&) {
    return complain("out of memory", kFailed);
  } catch (const std::exception& error) {
    return complain(error.what(), kFailed);
  }
  return kOk;
}
