// progress.json in a run's folder: how far the run has come, rewritten every few seconds while it
// goes on. Each write replaces the file as a whole.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "lockstep/cli/output.h"
#include "lockstep/train/run_progress.h"

namespace lockstep::cli {

inline constexpr const char* kProgressFile = "progress.json";

struct ProgressFile {
  RunProgress progress;
  std::string model;
  std::string host;  // of the process that trains
};

Json progress_json(const ProgressFile& file);
// DataError, naming `where`, if the text is damaged, foreign, or of a newer version.
ProgressFile progress_from_json(const std::string& text, const std::string& where);

void write_progress(const std::filesystem::path& run, const ProgressFile& file);
// Nothing if there is none yet.
std::optional<ProgressFile> read_progress(const std::filesystem::path& run);

// The name of this host.
std::string host_name();

}  // namespace lockstep::cli
