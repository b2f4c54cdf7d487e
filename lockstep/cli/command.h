// What the commands of the program share: their common flags, and how results are handed over.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/train/strategy.h"

namespace lockstep::cli {

// Keys stay in the order in which they are set: people read these files too.
using Json = nlohmann::ordered_json;

// Exit codes: scripts tell a wrong call from a failure of ours.
inline constexpr int kOk = 0;
inline constexpr int kFailed = 1;
inline constexpr int kWrongUse = 2;

// Where a command computes: --devices, --cores, --replicas, --strategy, --precision.
struct Placement {
  std::vector<std::string> devices = {};  // none: as many as there are replicas
  int cores = 0;                          // 0: all
  std::vector<int> replicas = {};         // none: one a device; several for bench alone
  std::string strategy = "";              // none: mirrored where there are several replicas
  std::string balance = "even";
  std::string precision = "float32";
  bool tf32 = false;  // on GPUs
};
void add_placement(CLI::App& app, Placement& placement);
// The numbers of replicas that a placement asks for, one in most commands; UsageError where they do
// not fit the devices, or this version cannot do what is asked. Keeps the process to --cores.
std::vector<int> replica_counts(const Placement& placement);
// The one number that there is; UsageError where there are several.
int one_count(const Placement& placement);
// The strategy for so many replicas. The cores are split over `most` logical devices.
Strategy make_strategy(const Placement& placement, int replicas, int most);
std::string strategy_name(const Placement& placement, int replicas);
// ", mixed_float16" for a line on the run; nothing in float32.
std::string precision_text(const Placement& placement);

// --batch-per-replica and --global-batch: one follows from the other and the number of replicas.
struct BatchFlags {
  std::int64_t per_replica = 0;  // 0: not given
  std::int64_t global = 0;
};
void add_batch(CLI::App& app, BatchFlags& flags);
// The batch of each replica; UsageError where both were given and do not agree, or a global one
// does not divide.
std::int64_t batch_per_replica(const BatchFlags& flags, int replicas, std::int64_t otherwise);

// UsageError, at once, where the file that a flag names cannot be written: not behind an hour of
// work.
void check_target(const char* flag, const std::string& target);
// Writes a result where --json asked for it: a file (whole or not at all), or "-", the terminal.
void write_json(const Json& json, const std::string& target);

// Each adds a command to the program; what it is to do is run by CLI11 when it was named.
void add_train(CLI::App& program);
void add_bench(CLI::App& program);
void add_plan(CLI::App& program);
void add_devices(CLI::App& program);

}  // namespace lockstep::cli
