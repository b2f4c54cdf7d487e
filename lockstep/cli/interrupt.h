// Signals that ask a run to end: SIGINT, SIGTERM and SIGHUP.
#pragma once

namespace lockstep::cli {

// From now on the first of these signals is remembered, and a second SIGINT or SIGTERM ends the
// process at once; SIGHUP is ignored after the first signal. One that whoever started the program
// has it ignore (nohup) stays ignored. A pipe whose reader has gone is a failed write, not the end.
void catch_signals();

// The signal that came; 0: none.
int caught_signal();
const char* signal_name(int signal);  // "SIGTERM"

// Thrown when a run was interrupted and everything is saved: the process ends with 128 + signal, as
// a shell reports one that a signal ended.
struct Interrupted {
  int signal;
};

}  // namespace lockstep::cli
