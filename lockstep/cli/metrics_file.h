// metrics.csv in a run's folder: the losses and metrics of every epoch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::cli {

inline constexpr const char* kMetricsFile = "metrics.csv";

// Values by name and epoch. If a resumed run repeated an epoch, the last values count.
struct MetricsFile {
  std::vector<std::string> columns;                          // in the file's order
  std::map<std::string, std::map<std::int64_t, double>> of;  // column → epoch (from 1) → value
};

// DataError, naming file and line, if it is damaged.
MetricsFile parse_metrics_file(const std::filesystem::path& file);
// Of a run's folder; nothing if it has none.
std::optional<MetricsFile> read_metrics_file(const std::filesystem::path& run);

// Whether a column is a loss or a metric, not a time or a rate.
bool is_learned(const std::string& column);

}  // namespace lockstep::cli
