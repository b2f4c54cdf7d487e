#include "lockstep/cli/run_publisher.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "lockstep/base/error.h"
#include "lockstep/cli/progress_file.h"
#include "lockstep/profile/recorder.h"

namespace lockstep::cli {
namespace {

constexpr std::chrono::milliseconds kReportEvery(500);
constexpr std::int64_t kWriteEveryNs = 2'000'000'000;
constexpr std::int64_t kWritingShare = 200;  // the file is written in so many times its duration

}  // namespace

RunPublisher::RunPublisher(std::ostream& out, RunPublisherOptions options)
    : out_(out), options_(std::move(options)) {
  if (!options_.metrics.empty()) address_ = parse_metrics_address(options_.metrics);
}

CallbackRef RunPublisher::callback() {
  return RunProgressReporter(
      {.report = [this](const RunProgress& now) { publish(now); }, .every = kReportEvery});
}

void RunPublisher::publish(const RunProgress& progress) {
  if (address_) serve(progress);
  const bool due = progress.ended || progress.steps == 0 ||
                   now_ns() - written_ns_ >= std::max(kWriteEveryNs, interval_ns_);
  if (writes_ && due) write_file(progress);
}

// The run goes on without it.
void RunPublisher::write_file(const RunProgress& progress) {
  const std::int64_t begin = now_ns();
  try {
    write_progress(options_.folder(),
                   {.progress = progress, .model = options_.model, .host = host_name()});
  } catch (const DataError& error) {
    writes_ = false;
    out_ << fmt::format("warning: {}; lockstep watch will not see how the run goes on\n",
                        error.what());
  }
  written_ns_ = now_ns();
  interval_ns_ = kWritingShare * (written_ns_ - begin);
}

void RunPublisher::serve(const RunProgress& progress) {
  const bool first = server_ == nullptr;
  if (first) server_ = std::make_unique<MetricsServer>(*address_);
  server_->set(metrics_text(
      progress,
      {.run = options_.folder().string(), .model = options_.model, .version = LOCKSTEP_VERSION}));
  if (!first) return;
  // Whoever reads the address finds something there.
  out_ << fmt::format("metrics       {}\n", server_->url());
  out_.flush();
}

}  // namespace lockstep::cli
