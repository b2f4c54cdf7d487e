#include "lockstep/train/verbose.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>

#include "lockstep/base/error.h"
#include "lockstep/train/callbacks.h"

namespace lockstep {
namespace {

bool on_terminal() {
  return isatty(STDOUT_FILENO) != 0;
}

void expect_level(const char* caller, std::optional<int> verbose) {
  require(!verbose || (*verbose >= 0 && *verbose <= 2),
          "[{}] verbose is {}; it must be 0 (nothing), 1 (a bar) or 2 (a line per epoch)", caller,
          verbose.value_or(0));
}

}  // namespace

std::vector<CallbackRef> with_progress(std::vector<CallbackRef> callbacks,
                                       std::optional<int> verbose) {
  expect_level("fit", verbose);
  const bool shown = std::ranges::any_of(callbacks, [](const CallbackRef& callback) {
    return callback != nullptr && callback->shows_progress();
  });
  const int level = verbose.value_or(shown ? 0 : on_terminal() ? 1 : 2);
  if (level > 0) {
    callbacks.push_back(
        ProgressBar(std::cout, {.terminal = level == 1, .while_epoch_runs = level == 1}));
  }
  return callbacks;
}

void show_result(std::optional<int> verbose, const char* caller, const std::string& line) {
  expect_level(caller, verbose);
  if (verbose.value_or(on_terminal() ? 1 : 0) > 0) std::cout << line << std::endl;
}

}  // namespace lockstep
