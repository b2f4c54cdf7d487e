// What the commands of the program share: their common flags, and how results are handed over.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/cli/flags.h"
#include "lockstep/cli/output.h"
#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/train/strategy.h"

namespace lockstep::cli {

// Exit codes: scripts tell a wrong call from a failure of ours.
inline constexpr int kOk = 0;
inline constexpr int kFailed = 1;
inline constexpr int kWrongUse = 2;
inline constexpr int kSignalled = 128;  // plus the signal

// Where a command computes: --devices, --cores, --replicas, --strategy, --precision.
struct Placement {
  std::vector<std::string> devices = {};  // none: as many as there are replicas
  int cores = 0;                          // 0: all
  std::vector<int> replicas = {};         // none: one a device; several for bench alone
  std::string strategy = "";              // none: mirrored where there are several replicas
  std::string balance = "even";
  std::string precision = "float32";
  bool no_tf32 = false;  // strict f32 on GPUs
};
void add_placement(Command app, Placement& placement);
// The numbers of replicas that a placement asks for, one in most commands; UsageError where they do
// not fit the devices, or this version cannot do what is asked. Keeps the process to --cores.
std::vector<int> replica_counts(const Placement& placement);
// The one number that there is; UsageError where there are several.
int one_count(const Placement& placement);
// The strategy for so many replicas. The cores are split over `most` logical devices.
Strategy make_strategy(const Placement& placement, int replicas, int most);
std::string strategy_name(const Placement& placement, int replicas);
// ", mixed_float16" for a line on the run; in float32 nothing on CPUs, and on GPUs whether products
// take TF32.
std::string precision_text(const Placement& placement, const Strategy& strategy);

// --batch-per-replica and --global-batch: one follows from the other and the number of replicas.
struct BatchFlags {
  std::int64_t per_replica = 0;  // 0: not given
  std::int64_t global = 0;
};
void add_batch(Command app, BatchFlags& flags);
// The samples of a step on all replicas; UsageError where both were given and do not agree, or
// there are fewer samples than replicas. Pieces may be uneven.
std::int64_t global_batch(const BatchFlags& flags, int replicas, std::int64_t otherwise);
// The batch of each replica; UsageError where a global one does not divide, too.
std::int64_t batch_per_replica(const BatchFlags& flags, int replicas, std::int64_t otherwise);

// Each adds a command to the program; what it is to do is run when it was named.
void add_train(Program& program);
void add_bench(Program& program);
void add_plan(Program& program);
void add_devices(Program& program);
void add_evaluate(Program& program);
void add_predict(Program& program);
void add_plot(Program& program);
void add_find_lr(Program& program);

}  // namespace lockstep::cli
