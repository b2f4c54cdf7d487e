#include "lockstep/cli/metrics_file.h"

#include <charconv>
#include <fstream>
#include <limits>
#include <sstream>

#include "lockstep/base/error.h"

namespace lockstep::cli {
namespace {

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream stream(line);
  for (std::string cell; std::getline(stream, cell, ',');) cells.push_back(cell);
  return cells;
}

// Nothing if the cell is empty or not a number.
std::optional<double> number_in(const std::string& cell) {
  if (cell == "nan" || cell == "-nan") return std::numeric_limits<double>::quiet_NaN();
  double value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error != std::errc() || end != cell.data() + cell.size()) return std::nullopt;
  return value;
}

}  // namespace

MetricsFile parse_metrics_file(const std::filesystem::path& file) {
  std::ifstream stream(file);
  if (!stream) fail<DataError>("{}: cannot be read", file.string());
  MetricsFile metrics;
  std::string line;
  std::getline(stream, line);
  const std::vector<std::string> names = cells_of(line);
  if (names.empty() || names.front() != "epoch") {
    fail<DataError>("{} does not begin with the names of the columns (epoch,…)", file.string());
  }
  metrics.columns.assign(names.begin() + 1, names.end());
  for (std::int64_t row = 2; std::getline(stream, line); ++row) {
    const std::vector<std::string> cells = cells_of(line);
    const auto epoch = cells.empty() ? std::nullopt : number_in(cells.front());
    constexpr double kMostEpochsRead = 1e12;
    if (!epoch || !(*epoch >= 0 && *epoch < kMostEpochsRead) || cells.size() > names.size()) {
      fail<DataError>("{}, line {}: this is not a row of {} numbers", file.string(), row,
                      names.size());
    }
    for (std::size_t i = 1; i < cells.size(); ++i) {
      if (cells[i].empty()) continue;
      const auto value = number_in(cells[i]);
      if (!value) {
        fail<DataError>("{}, line {}: '{}' is not a number", file.string(), row, cells[i]);
      }
      metrics.of[names[i]][static_cast<std::int64_t>(*epoch) + 1] = *value;
    }
  }
  return metrics;
}

std::optional<MetricsFile> read_metrics_file(const std::filesystem::path& run) {
  const std::filesystem::path file = run / kMetricsFile;
  std::error_code error;
  if (!std::filesystem::exists(file, error)) return std::nullopt;
  return parse_metrics_file(file);
}

bool is_learned(const std::string& column) {
  return column != "seconds" && column != "samples_per_s" && column != "lr";
}

}  // namespace lockstep::cli
