#include "lockstep/cli/follow.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/cli/folder_watch.h"
#include "lockstep/cli/interrupt.h"
#include "lockstep/cli/run_folder.h"
#include "lockstep/cli/run_record.h"
#include "lockstep/cli/test_data.h"
#include "lockstep/cli/trained_run.h"
#include "lockstep/tensor/sliced_file.h"
#include "lockstep/train/checkpoint.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Tells one version of a file from the next, which replaces it.
struct FileVersion {
  ino_t number = 0;
  off_t size = 0;
  std::int64_t seconds = 0;
  std::int64_t nanoseconds = 0;

  bool operator==(const FileVersion&) const = default;
};

std::optional<FileVersion> version_of(const fs::path& file) {
  struct stat status = {};
  if (stat(file.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  return FileVersion{.number = status.st_ino,
                     .size = status.st_size,
                     .seconds = status.st_mtim.tv_sec,
                     .nanoseconds = status.st_mtim.tv_nsec};
}

// A checkpoint's place in the run.
struct Position {
  std::int64_t step = 0;
  std::int64_t epoch = 0;  // of its last step, from 0, as in metrics.csv
};

Position position_of(const TensorFile& contents, const fs::path& file) {
  Position position;
  position.step = read_integer(contents.metadata, "step", file).value_or(0);
  if (const std::optional<Progress> next = read_progress(contents, file)) {
    const bool in_epoch = next->mid_epoch() || next->trained;
    position.epoch = in_epoch || next->epoch == 0 ? next->epoch : next->epoch - 1;
  }
  return position;
}

struct Checkpoint {
  TensorFile contents;
  Position at;
};

// A line of evaluation.csv.
struct Evaluation {
  Position at;
  Logs logs;
  double wall_time = 0;  // seconds since 1970
};

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Appends to the file with one write, so that its lines are whole. The first line names the
// columns.
void append_line(const fs::path& file, const Evaluation& evaluation) {
  const int descriptor = ::open(file.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  struct stat status = {};
  bool written = false;
  if (descriptor >= 0 && fstat(descriptor, &status) == 0) {
    std::string text;
    char last = '\n';
    if (status.st_size > 0 && pread(descriptor, &last, 1, status.st_size - 1) == 1 && last != '\n')
      text += '\n';  // the last writer was killed
    std::string names = "step,epoch";
    std::string values = fmt::format("{},{}", evaluation.at.step, evaluation.at.epoch);
    for (const auto& [name, value] : evaluation.logs.items()) {
      names += "," + name;
      values += fmt::format(",{}", value);
    }
    if (status.st_size == 0) text += names + ",wall_time\n";
    text += fmt::format("{},{:.3f}\n", values, evaluation.wall_time);
    written = ::write(descriptor, text.data(), text.size()) == std::ssize(text);
  }
  const int number = errno;
  if (descriptor >= 0) ::close(descriptor);
  if (!written) {
    fail<DataError>("{}: cannot be written: {}", file.string(),
                    std::generic_category().message(number));
  }
}

Json evaluation_json(const Evaluation& evaluation) {
  return {{"step", evaluation.at.step},
          {"epoch", evaluation.at.epoch},
          {"loss", evaluation.logs.at("loss")},
          {"metrics", metrics_json(evaluation.logs)},
          {"wall_time", evaluation.wall_time}};
}

// The process that follows a run.
class Evaluator {
 public:
  explicit Evaluator(const FollowOptions& options)
      : options_(options), watch_(options.run), quiet_(is_standard_output(options.json)) {}
  void run();

 private:
  std::optional<Json> read_state();
  bool has_ended(const Json& state);
  void open_model();
  bool evaluate_new();
  std::optional<Checkpoint> read_checkpoint(const FileVersion& version);
  void wait();
  void finish(const Json& state);
  template <class... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) const;
  fs::path checkpoint() const { return folder_ / kLastCheckpoint; }

  FollowOptions options_;
  FolderWatch watch_;
  bool quiet_;
  fs::path folder_;  // empty: there is no run yet
  std::optional<TrainedRun> run_;
  std::optional<TestData> data_;
  std::optional<FileVersion> seen_;  // the last checkpoint that was read, or was damaged
  std::vector<Evaluation> done_;
  int unreadable_ = 0;     // how often the record could not be read
  std::size_t calls_ = 0;  // that have resumed the run
  std::optional<std::size_t>
      before_;  // of them, when this process first saw that the run had ended
  Clock::time_point waits_since_ = Clock::now();
};

template <class... Args>
void Evaluator::say(fmt::format_string<Args...> format, Args&&... args) const {
  if (quiet_) return;
  fmt::print(format, std::forward<Args>(args)...);
  std::fflush(stdout);
}

// The state in the run's record; nothing if there is none yet. On a network, a record may be
// unreadable while it is replaced.
std::optional<Json> Evaluator::read_state() {
  constexpr int kAttempts = 5;
  const fs::path folder = folder_.empty() ? fs::path(options_.run) : folder_;
  try {
    const std::optional<Json> record = read_record(folder / kRecordFile);
    unreadable_ = 0;
    if (!record) return std::nullopt;
    // runs/last may point to another run later.
    if (folder_.empty()) folder_ = fs::canonical(folder);
    calls_ = record_part(*record, "resumed", folder / kRecordFile).size();
    return record_part(*record, "state", folder / kRecordFile);
  } catch (const DataError&) {
    if (++unreadable_ == kAttempts) throw;
    return std::nullopt;
  }
}

bool Evaluator::has_ended(const Json& state) {
  const bool ended = state.value("status", "running") != "running";
  if (!options_.resumes || !ended) {
    options_.resumes = false;
    return ended;
  }
  if (!before_) say("waiting until the run in {} is resumed\n", folder_.string());
  before_ = before_.value_or(calls_);
  return calls_ > *before_;
}

void Evaluator::open_model() {
  run_ = open_untrained({.run = checkpoint().string(), .placement = options_.placement});
  if (!options_.own_data.empty()) run_->options.data = options_.own_data;
  data_ = test_data(*run_, {.data = options_.data, .batch = options_.batch});
  say("{} on {}\n", checkpoint().string(), data_->where);
}

// Nothing if it is damaged. One that was replaced meanwhile is read again.
std::optional<Checkpoint> Evaluator::read_checkpoint(const FileVersion& version) {
  try {
    TensorFile contents = load_tensors(checkpoint());
    expect_checkpoint(contents, checkpoint());
    expect_fit(contents, with_names(run_->model.variables()), checkpoint());
    const Position at = position_of(contents, checkpoint());
    return Checkpoint{.contents = std::move(contents), .at = at};
  } catch (const Error& error) {
    if (version_of(checkpoint()) != version) return std::nullopt;
    fmt::print(stderr, "lockstep: warning: {}; waiting for the next one\n", error.what());
    return std::nullopt;
  }
}

// Whether there was a checkpoint that had not been seen.
bool Evaluator::evaluate_new() {
  const std::optional<FileVersion> version = version_of(checkpoint());
  if (!version || version == seen_) return false;
  if (!run_) open_model();
  seen_ = version;
  waits_since_ = Clock::now();
  const std::optional<Checkpoint> read = read_checkpoint(*version);
  if (!read) return true;
  const Position& at = read->at;
  // The end of an epoch is saved before and after its validation, with the same weights.
  if (!done_.empty() && done_.back().at.step == at.step) return true;
  for (const auto& [name, variable] : with_names(run_->model.variables())) {
    run_->model.set_value(variable, read->contents.tensors.at(name));
  }
  const Logs logs = run_->model.evaluate(data_->batches, {.verbose = 0});
  done_.push_back({.at = at, .logs = logs, .wall_time = seconds_since_1970()});
  append_line(folder_ / kEvaluationFile, done_.back());
  say("step {}, epoch {}: {}\n", at.step, at.epoch + 1, logs_text(logs));
  waits_since_ = Clock::now();
  return true;
}

void Evaluator::wait() {
  require(options_.timeout.count() == 0 || Clock::now() - waits_since_ < options_.timeout,
          "{}: {} for {} s: is the run still being trained? A longer --timeout waits longer",
          options_.run, folder_.empty() ? "there was no run" : "there was no new checkpoint",
          options_.timeout.count());
  watch_.wait();
}

void Evaluator::finish(const Json& state) {
  const std::string status = state.value("status", "ended");
  const std::string why = state.value("why", "");
  say("the run is {}{}{}; {} evaluation{} in {}\n", status, why.empty() ? "" : ": ", why,
      done_.size(), done_.size() == 1 ? "" : "s", (folder_ / kEvaluationFile).string());
  Json evaluations = Json::array();
  for (const Evaluation& each : done_) evaluations.push_back(evaluation_json(each));
  write_json({{"run", folder_.string()},
              {"status", status},
              {"samples", data_ ? data_->samples : 0},
              {"evaluations", std::move(evaluations)}},
             options_.json);
}

void Evaluator::run() {
  require(!fs::is_regular_file(options_.run),
          "--follow {}: this is a file: name the run's folder, such as runs/last", options_.run);
  if (!fs::exists(fs::path(options_.run) / kRecordFile)) {
    say("waiting for a run in {}\n", options_.run);
  }
  while (caught_signal() == 0) {
    // First the state, then the checkpoint: the last one is there when the run has ended.
    const std::optional<Json> state = read_state();
    const bool ended = state && has_ended(*state);
    if (state && evaluate_new()) continue;
    if (ended) return finish(*state);
    wait();
  }
  throw Interrupted{caught_signal()};
}

}  // namespace

std::string logs_text(const Logs& logs) {
  std::string text;
  for (const auto& [name, value] : logs.items()) {
    text += fmt::format("{}{} {:.4f}", text.empty() ? "" : ", ", name, value);
  }
  return text;
}

Json metrics_json(const Logs& logs) {
  Json metrics = Json::object();
  for (const auto& [name, value] : logs.items()) {
    if (name != "loss") metrics[name] = value;
  }
  return metrics;
}

void follow_run(const FollowOptions& options) {
  catch_signals();
  Evaluator(options).run();
}

void follow_run_of(const TrainOptions& options) {
  require(!options.run_dir.empty() || !options.resume.empty(),
          "this process was started as an evaluator, which follows the run of the workers: give "
          "--run-dir, the folder of that run, to all of them");
  Placement placement = options.placement;
  placement.strategy.clear();
  placement.precision = "float32";  // the run's is used
  follow_run({.run = options.run_dir.empty() ? options.resume : options.run_dir,
              .own_data = options.data,
              .placement = placement,
              .resumes = options.run_dir.empty(),
              .json = options.json});
}

}  // namespace lockstep::cli
