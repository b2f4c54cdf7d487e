// Signals that ask a run to end: SIGINT, SIGTERM and SIGHUP.
#pragma once

namespace lockstep::cli {

// From now on the first of these signals is remembered, and a second SIGINT or SIGTERM ends the
// process at once; SIGHUP is ignored after the first signal. A signal that the parent process set
// to be ignored (nohup) stays ignored. SIGPIPE is ignored: writing to a closed pipe fails instead.
void catch_signals();

// The signal that came; 0: none.
int caught_signal();
const char* signal_name(int signal);  // "SIGTERM"

// Thrown when a run was interrupted and everything is saved: the process exits with 128 + signal,
// as shells report it.
struct Interrupted {
  int signal;
};

}  // namespace lockstep::cli
