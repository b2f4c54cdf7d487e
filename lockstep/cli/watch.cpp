// lockstep watch: shows how a run goes while it goes on, from what it writes to its folder. On a
// terminal the view is redrawn in place; elsewhere every change is a line.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/cli/command.h"
#include "lockstep/cli/explain_charts.h"
#include "lockstep/cli/folder_watch.h"
#include "lockstep/cli/interrupt.h"
#include "lockstep/cli/progress_file.h"
#include "lockstep/cli/progress_view.h"
#include "lockstep/cli/run_folder.h"
#include "lockstep/cli/run_record.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

struct WatchOptions {
  std::string run;
  bool once = false;
  std::string json;
};

class RunWatcher {
 public:
  explicit RunWatcher(const WatchOptions& options)
      : options_(options),
        watch_(options.run),
        quiet_(is_standard_output(options.json)),
        in_place_(!quiet_ && !options.once && isatty(STDOUT_FILENO) == 1) {}

  void run();

 private:
  // What the folder says now.
  struct Seen {
    std::string status;  // "running", "finished", …; empty: there is no run yet
    std::string why;
    std::optional<ProgressFile> progress;
  };
  Seen look();
  bool is_gone(const Seen& seen);
  void show(const Seen& seen);
  void finish(const Seen& seen, bool gone);

  WatchOptions options_;
  FolderWatch watch_;
  bool quiet_;
  bool in_place_;
  fs::path folder_;      // empty: there is no run yet
  int unheld_ = 0;       // how often nobody held the folder of a run that goes on
  int unreadable_ = 0;   // how often a file could not be read
  std::string last_;     // what was shown
  int drawn_lines_ = 0;  // of the view that is redrawn
};

// On a network a file may be unreadable while it is replaced.
RunWatcher::Seen RunWatcher::look() {
  constexpr int kAttempts = 5;
  const fs::path folder = folder_.empty() ? fs::path(options_.run) : folder_;
  try {
    Seen seen;
    // First the state, then the progress: the last one is there when the run has ended.
    if (const std::optional<Json> record = read_record(folder / kRecordFile)) {
      if (folder_.empty()) folder_ = fs::canonical(folder);
      const Json& state = record_part(*record, "state", folder / kRecordFile);
      seen.status = state.value("status", "running");
      seen.why = state.value("why", "");
      seen.progress = read_progress(folder_);
    }
    unreadable_ = 0;
    return seen;
  } catch (const DataError&) {
    if (options_.once || ++unreadable_ == kAttempts) throw;
    return {.status = folder_.empty() ? "" : "running", .why = "", .progress = std::nullopt};
  }
}

// The process that trained was on this host and no longer holds the folder: it was killed. Of
// several workers another one may be about to take over.
bool RunWatcher::is_gone(const Seen& seen) {
  const bool unheld = seen.status == "running" && seen.progress &&
                      seen.progress->host == host_name() && !is_locked(folder_);
  unheld_ = unheld ? unheld_ + 1 : 0;
  constexpr int kLooksOfSeveral = 30;
  return unheld_ > (unheld && seen.progress->progress.workers > 1 ? kLooksOfSeveral : 1);
}

void RunWatcher::show(const Seen& seen) {
  if (quiet_ || !seen.progress) return;
  const TerminalStyle style = style_of_output();
  const std::string text = in_place_ || options_.once
                               ? progress_view(*seen.progress, folder_.string(), style)
                               : progress_line(seen.progress->progress) + "\n";
  if (text == last_) return;
  last_ = text;
  // Up to the first line of the view, and clear everything from there on.
  if (in_place_ && drawn_lines_ > 0) fmt::print("\x1b[{}F\x1b[J", drawn_lines_);
  drawn_lines_ = static_cast<int>(std::ranges::count(text, '\n'));
  fmt::print("{}", text);
  std::fflush(stdout);
}

void RunWatcher::finish(const Seen& seen, bool gone) {
  const std::string status = gone ? "gone" : seen.status;
  if (!quiet_ && gone) {
    fmt::print(
        "the process that trained has ended without a word (was it killed?); continue with "
        "lockstep train --resume {}\n",
        options_.run);
  } else if (!quiet_ && status != "running") {
    fmt::print("the run is {}{}{}{}\n", status, seen.why.empty() ? "" : ": ", seen.why,
               status == "finished"
                   ? fmt::format("; lockstep explain {} says where its time went", options_.run)
                   : std::string());
  }
  Json json = {{"run", folder_.string()}, {"status", status}};
  if (!seen.why.empty()) json["why"] = seen.why;
  if (seen.progress) json["progress"] = progress_json(*seen.progress);
  write_json(json, options_.json);
}

void RunWatcher::run() {
  require(!fs::is_regular_file(options_.run),
          "watch {}: this is a file: name the run's folder, such as runs/last", options_.run);
  bool told = false;
  while (caught_signal() == 0) {
    const Seen seen = look();
    const bool gone = is_gone(seen);
    show(seen);
    if (options_.once) {
      require(!seen.status.empty(), "watch {}: there is no run in this folder", options_.run);
      return finish(seen, gone);
    }
    const bool over = gone || (!seen.status.empty() && seen.status != "running");
    if (over) return finish(seen, gone);
    if (seen.status.empty() && !std::exchange(told, true) && !quiet_) {
      fmt::print("waiting for a run in {}\n", options_.run);
      std::fflush(stdout);
    }
    watch_.wait();
  }
  throw Interrupted{caught_signal()};
}

}  // namespace

void add_watch(Program& program) {
  Command app = program.add_command("watch", "Shows how a run goes while it goes on.");
  auto options = std::make_shared<WatchOptions>();
  app.add_option("run", options->run, "a run's folder (runs/last); it need not exist yet")
      .required();
  app.add_flag("--once", options->once, "show it as it is now, and end");
  app.add_option("--json", options->json,
                 "when it ends, write how far the run has come to this file (-: standard output)");
  app.callback([options] {
    check_target("--json", options->json);
    catch_signals();
    RunWatcher(*options).run();
  });
}

}  // namespace lockstep::cli
