// LaunchedWorker: one worker as the launcher sees it: its process, what it writes, how it ended.
#pragma once

#include <csignal>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "lockstep/cluster/launch/hosts.h"
#include "lockstep/cluster/launch/lines.h"
#include "lockstep/cluster/launch/process.h"
#include "lockstep/cluster/launch/screen.h"

namespace lockstep::launch {

class LaunchedWorker {
 public:
  // `prefix` begins each of its lines; `input` is ssh's standard input, or nothing for a worker on
  // this host; `log` an open file, or nothing.
  struct Parts {
    Seat seat;
    std::string prefix;
    Process process;
    Descriptor input;
    Descriptor log;
  };
  LaunchedWorker(Parts parts, Screen& screen);
  LaunchedWorker(const LaunchedWorker&) = delete;
  LaunchedWorker& operator=(const LaunchedWorker&) = delete;

  const Seat& seat() const { return parts_.seat; }
  const Process& process() const { return parts_.process; }
  bool ended() const { return parts_.process.id < 0; }
  const End& end() const { return end_; }

  // Shows and logs what the worker has written; returns whether there may be more.
  bool read(Screen::Stream stream);
  // From now on, its standard error goes only to its log.
  void hold_back_errors() { errors_held_back_ = true; }
  // From now on, its progress is that of the job.
  void lead() { leads_ = true; }
  // Sends a signal to the worker and to what it has started; over ssh, through the connection.
  void signal(int number);
  void kill();
  // Kills ssh itself, if the other host does not answer.
  void abandon() { parts_.process.signal(SIGKILL); }
  // The process has ended: reads the rest and takes the exit status.
  void finish();

  // "worker 2 on host b ended with signal 9 (killed)"
  std::string how_it_ended() const;
  // Its last lines on standard error, unless they are still in sight.
  std::deque<std::string> last_errors() const;
  // Why the log could not be written, as errno says it; 0: it could.
  int log_failure() const { return log_failure_; }

 private:
  void show(Screen::Stream stream, const Lines::Line& line);
  void show_progress(Screen::Stream stream, std::string_view text);
  void log(std::string_view text);
  bool chief() const { return leads_; }

  Parts parts_;
  Screen& screen_;
  Lines out_, err_;
  End end_;
  bool leads_ = parts_.seat.worker == 0;
  bool errors_held_back_ = false;
  bool showed_progress_ = false;
  int log_failure_ = 0;
  std::deque<std::string> tail_;
  std::uint64_t tail_shown_ = 0;  // how many lines the screen had shown with the last of them
};

}  // namespace lockstep::launch
