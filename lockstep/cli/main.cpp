// The program `lockstep`. Wrong flags and bad files end with one line and exit code 2, other
// failures with exit code 1.
#include <execinfo.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/cli/advice.h"
#include "lockstep/cli/command.h"
#include "lockstep/cli/interrupt.h"

namespace {

using namespace lockstep;
using namespace lockstep::cli;

int complain(const std::string& what, int code) {
  std::fflush(stdout);
  const std::string line = fmt::format("lockstep: {}\n", for_program(what));
  std::fwrite(line.data(), 1, line.size(), stderr);  // if this fails, nothing can be reported
  return code;
}

// A file opened while a standard stream is closed would take its descriptor, and output would go
// into that file. Opens /dev/null there, in the wrong mode, so that writing to it still fails.
void fill_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) == -1 && errno == EBADF) {
      static_cast<void>(open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY));
    }
  }
}

// glibc loads libgcc_s when the first thread ends, and aborts if there is no memory left for it.
// Calling backtrace loads it now.
void load_early() {
  void* frame = nullptr;
  static_cast<void>(backtrace(&frame, 1));
}

// Reports output that could not be written: a full disk, a pipe whose reader has gone.
int finish(int code) {
  std::cout.flush();
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good();
  if (written || code != kOk) return code;
  return complain("the output could not be written: is the disk full, or the reader gone?",
                  kFailed);
}

// glibc reserves 64 MiB of address space per thread for its arenas. Under ulimit -v that could
// leave too little for libraries that abort when they get no memory.
void spare_addresses() {
  rlimit most{};
  const bool limited = getrlimit(RLIMIT_AS, &most) == 0 && most.rlim_cur != RLIM_INFINITY;
  if (limited) mallopt(M_ARENA_MAX, 1);
}

}  // namespace

int main(int argc, char** argv) {
  spare_addresses();
  fill_closed_streams();
  load_early();
  Program program("Trains neural networks and reports where the time goes.", "lockstep",
                  LOCKSTEP_VERSION);
  add_train(program);
  add_evaluate(program);
  add_explain(program);
  add_predict(program);
  add_plot(program);
  add_find_lr(program);
  add_bench(program);
  add_plan(program);
  add_devices(program);
  add_launch(program);
  add_scale(program);
  add_watch(program);

  const std::string first = argc > 1 ? argv[1] : "";
  const std::vector<std::string> known = program.commands();
  const std::string names = fmt::format("{}", fmt::join(known, ", "));
  if (first.empty()) return complain("name a command: " + names, kWrongUse);
  if (!first.starts_with("-") && std::ranges::count(known, first) == 0) {
    return complain(fmt::format("there is no command {}; use one of {}", first, names), kWrongUse);
  }
  try {
    program.parse(argc, argv);
  } catch (const WrongFlags& error) {
    return complain(fmt::format("{} (see lockstep --help)", error.what()), kWrongUse);
  } catch (const ExitCode& end) {
    return end.code;
  } catch (const Interrupted& end) {
    return kSignalled + end.signal;
  } catch (const UsageError& error) {
    return complain(error.what(), kWrongUse);
  } catch (const DataError& error) {
    return complain(error.what(), kWrongUse);
  } catch (const std::bad_alloc&) {
    return complain("there is not enough memory; use a smaller batch", kFailed);
  } catch (const std::exception& error) {
    return complain(error.what(), kFailed);
  }
  return finish(kOk);
}
