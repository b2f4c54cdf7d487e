// RunPublisher: tells others how far a run has come while `lockstep train` runs it: progress.json
// in its folder, for `lockstep watch`, and a server of metrics if --metrics asks for one.
#pragma once

#include <filesystem>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/cli/metrics_server.h"
#include "lockstep/cli/metrics_text.h"
#include "lockstep/train/callback.h"

namespace lockstep::cli {

struct RunPublisherOptions {
  std::string model;
  std::string metrics;  // --metrics; empty: no server
  // The run's folder; asked for when there is something to write.
  std::function<std::filesystem::path()> folder;
};

// Must outlive the training, and `out`, to which it says where metrics are and what went wrong,
// must outlive it. Of several workers the chief publishes, whichever that is at the time.
class RunPublisher {
 public:
  // UsageError if --metrics is not an address.
  RunPublisher(std::ostream& out, RunPublisherOptions options);

  CallbackRef callback();

 private:
  void publish(const RunProgress& progress);
  void write_file(const RunProgress& progress);
  void serve(const RunProgress& progress);

  std::ostream& out_;
  RunPublisherOptions options_;
  std::optional<MetricsAddress> address_;
  std::unique_ptr<MetricsServer> server_;
  bool writes_ = true;            // until that fails
  std::int64_t written_ns_ = 0;   // when the file was written last
  std::int64_t interval_ns_ = 0;  // until it is written again
};

}  // namespace lockstep::cli
