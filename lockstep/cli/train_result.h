// How a run of `lockstep train` ended: its JSON, and what people read.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

#include "lockstep/cli/command.h"
#include "lockstep/cli/train_options.h"
#include "lockstep/train/history.h"
#include "lockstep/train/strategy.h"

namespace lockstep::cli {

// How a run ended. Determined once, so that all reports of it agree.
struct Ending {
  int signal = 0;                         // the signal that interrupted it, or 0
  std::optional<std::string> checkpoint;  // none: nothing was saved yet
};

Json result_json(const TrainOptions& options, const Strategy& strategy, std::int64_t batch,
                 const History& history, const Ending& ending);

struct EndReport {
  std::string run;  // the folder
  const Ending& ending;
  std::int64_t epochs = 0;                   // of the run
  const Explanation* explanation = nullptr;  // ReportOptions::explanation
};
// What the user sees at the end.
void report(std::ostream& out, const History& history, const EndReport& of);

}  // namespace lockstep::cli
