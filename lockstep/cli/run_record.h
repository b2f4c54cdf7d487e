// run.json in a run's folder: everything the run was started with, and its progress.
//
//   format          "lockstep run", format_version 1
//   program         version, compiler, libraries
//   started         time and command line; `resumed` lists the same for later calls
//   options         the value of every flag that a resumed run needs (train_options.h)
//   effective       the result: optimizer, rate, strategy, devices, replicas, parameters
//   data            the data set's fingerprint, sizes, class names, image handling
//   state           status ("running", "finished", "interrupted", "failed"), epochs done, best
//                   epoch
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
// Adds this call to `resumed`, with the options that it changes.
void note_resumed(Json& record, const Json& options);

// Nothing if there is no such file; DataError, naming it, if it is not a record that this version
// reads.
std::optional<Json> read_record(const std::filesystem::path& file);

// A part of the record; DataError, naming the file, if it is missing.
const Json& record_part(const Json& record, const char* part, const std::filesystem::path& file);

// Keeps the record up to date during a run. Each write is atomic.
class RunRecorder {
 public:
  RunRecorder(std::filesystem::path file, Json record)
      : file_(std::move(file)), record_(std::move(record)) {}

  const Json& record() const { return record_; }
  // The first write, with status "running".
  void begin();
  // Called after the epoch's checkpoint is written.
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
