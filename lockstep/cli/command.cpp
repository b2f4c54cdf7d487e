#include "lockstep/cli/command.h"

#include <fmt/core.h>
#include <unistd.h>

#include <fstream>
#include <system_error>

#include "lockstep/base/error.h"

namespace lockstep::cli {

void add_placement(CLI::App& app, Placement& placement) {
  app.add_option("--devices", placement.devices, "where to compute")->capture_default_str();
  app.add_option("--cores", placement.cores, "how many of the machine's cores to use (all)")
      ->check(CLI::PositiveNumber);
  app.add_option("--replicas", placement.replicas, "copies of the model")->capture_default_str();
  app.add_option("--strategy", placement.strategy, "how replicas work together")
      ->capture_default_str();
  app.add_option("--precision", placement.precision, "type to compute in")->capture_default_str();
}

std::unique_ptr<CpuDevice> make_device(const Placement& placement) {
  require(placement.devices == "cpu:0",
          "--devices {}: this version trains on one device, cpu:0 (see: lockstep devices)",
          placement.devices);
  require(placement.replicas == 1, "--replicas {}: this version trains one replica, on one device",
          placement.replicas);
  require(placement.strategy == "one-device" || placement.strategy == "mirrored",
          "--strategy {}: this version has one-device, and mirrored over one device",
          placement.strategy);
  require(placement.precision == "float32", "--precision {}: this version computes in float32",
          placement.precision);
  std::vector<int> cores = available_cores();
  if (placement.cores > 0) {
    require(static_cast<std::size_t>(placement.cores) <= cores.size(),
            "--cores {}: this process may use {} of the machine's cores", placement.cores,
            cores.size());
    cores.resize(static_cast<std::size_t>(placement.cores));
  }
  return std::make_unique<CpuDevice>(0, std::move(cores));
}

void add_batch(CLI::App& app, BatchFlags& flags) {
  app.add_option("--batch-per-replica", flags.per_replica, "samples a step on each replica")
      ->check(CLI::PositiveNumber);
  app.add_option("--global-batch,--batch", flags.global, "samples a step on all replicas together")
      ->check(CLI::PositiveNumber);
}

std::int64_t batch_per_replica(const BatchFlags& flags, int replicas, std::int64_t otherwise) {
  if (flags.global == 0) return flags.per_replica > 0 ? flags.per_replica : otherwise;
  require(flags.per_replica == 0 || flags.per_replica * replicas == flags.global,
          "--global-batch {} is not {} replica(s) of --batch-per-replica {}; give one of the two",
          flags.global, replicas, flags.per_replica);
  require(flags.global % replicas == 0, "--global-batch {} does not divide over {} replicas",
          flags.global, replicas);
  return flags.global / replicas;
}

void check_target(const char* flag, const std::string& target) {
  if (target.empty() || target == "-") return;
  const std::filesystem::path file = target;
  const auto folder = file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
  require(!std::filesystem::is_directory(file), "{} {}: this is a folder", flag, target);
  require(access(folder.c_str(), W_OK | X_OK) == 0, "{} {}: the folder {} cannot be written to",
          flag, target, folder.string());
}

void write_json(const Json& json, const std::string& target) {
  if (target.empty()) return;
  if (target == "-") {
    fmt::print("{}\n", json.dump());
    return;
  }
  const std::filesystem::path file = target;
  const std::filesystem::path temporary = target + ".partial";
  std::ofstream stream(temporary);
  stream << json.dump(2) << '\n';
  stream.close();
  std::error_code error;
  if (stream) std::filesystem::rename(temporary, file, error);
  if (!stream || error) {
    std::filesystem::remove(temporary, error);
    fail<DataError>("--json {}: the file cannot be written", target);
  }
}

}  // namespace lockstep::cli
