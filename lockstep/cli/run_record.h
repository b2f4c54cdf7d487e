// run.json in a run's folder: everything that the run was started with, and how far it has come.
//
//   format          "lockstep run", format_version 1
//   program         version, compiler, libraries
//   started         when, and with which command line; `resumed` lists the same of later calls
//   options         the value of every flag that a resumed run needs (train_options.h)
//   effective       what came of them: optimizer, rate, strategy, devices, replicas, parameters
//   data            the data set's identity by content, its sizes, class names, image handling
//   state           status ("running", "finished", "interrupted", "failed"), epochs done, best
//   epoch
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "lockstep/cli/command.h"
#include "lockstep/train/callback.h"

namespace lockstep::cli {

inline constexpr const char* kRecordFile = "run.json";

// A new record, with the program's versions, the time and the command line.
Json new_record();
// Adds this call to `resumed`, and the options that it changes.
void note_resumed(Json& record, const Json& options);

// Nothing where there is no such file; DataError, naming it, where it is not a record that this
// version reads.
std::optional<Json> read_record(const std::filesystem::path& file);

// The parts that a reader relies on; DataError, naming the file, where one is not there.
const Json& record_part(const Json& record, const char* part, const std::filesystem::path& file);

// Keeps a record's state up to date while a run goes on, and writes it whole or not at all.
class RunRecorder {
 public:
  RunRecorder(std::filesystem::path file, Json record)
      : file_(std::move(file)), record_(std::move(record)) {}

  const Json& record() const { return record_; }
  // Writes it for the first time, as running.
  void begin();
  // Behind an epoch's checkpoint.
  void epoch_done(std::int64_t epoch, std::int64_t step, const Logs& logs);
  // "finished", or "interrupted" with the signal's name, or "failed" with the error.
  void end(const std::string& status, const std::string& why = "");

 private:
  void write();

  std::filesystem::path file_;
  Json record_;
  bool begun_ = false;
};

}  // namespace lockstep::cli
