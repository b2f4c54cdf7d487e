// What the program's commands share: common flags, exit codes, and how they are registered.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/cli/flags.h"
#include "lockstep/cli/output.h"
#include "lockstep/cluster/tls_files.h"
#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/passes/memory_options.h"
#include "lockstep/train/strategy.h"

namespace lockstep::cli {

// Exit codes, so that scripts can tell a wrong call from a failure.
inline constexpr int kOk = 0;
inline constexpr int kFailed = 1;
inline constexpr int kWrongUse = 2;
inline constexpr int kSignalled = 128;  // plus the signal

// Thrown when a command has reported everything and the process is to exit with this code.
struct ExitCode {
  int code;
};

// Where and how a command computes.
struct Placement {
  std::vector<std::string> devices = {};  // empty: one per replica
  int cores = 0;                          // 0: all
  std::vector<int> replicas = {};         // empty: one per device; several only for bench
  std::string strategy = "";              // empty: mirrored if there are several replicas
  std::string balance = "even";
  std::string precision = "float32";
  bool no_tf32 = false;          // strict f32 on GPUs
  double heartbeat_timeout = 5;  // seconds; of several workers
  std::string on_failure = {};   // stop, restart or shrink; of several workers
  double progress_timeout = 60;
  TlsFiles tls = {};
  std::string port_range = "";
};
void add_placement(Command app, Placement& placement);

// How a command's steps save memory.
struct MemoryFlags {
  std::string accumulate = "1";  // or auto
  std::string recompute = "none";
  int shard = 0;
  std::string gather_budget = "auto";  // or bytes
  std::string offload = "none";
  std::string gradient_dtype = "float32";
};
void add_memory(Command app, MemoryFlags& flags);
// UsageError, naming the flag, if one cannot be followed.
MemoryOptions memory_options(const MemoryFlags& flags);
// The flags that give these options.
MemoryFlags memory_flags(const MemoryOptions& options);
// --tls-cert, --tls-key and --tls-ca.
void add_tls(Command app, TlsFiles& tls);
// The files that the flags name or, if there are none, the environment. UsageError where one of the
// three is missing.
TlsFiles tls_of(const TlsFiles& flags);
// The replica counts that a placement asks for, one in most commands. UsageError if they do not fit
// the devices or a flag is unknown. Restricts the process to --cores.
std::vector<int> replica_counts(const Placement& placement);
// The only count; UsageError if there are several.
int one_count(const Placement& placement);
// Whether this process is one of several workers that train together: if --strategy says so, or, if
// it says nothing, whatever started the process.
bool is_one_of_several(const Placement& placement);
// Whether this process was started as an evaluator, which follows the run that others train. An
// explicit --strategy other than multi-worker says that it was not.
bool is_evaluator(const Placement& placement);
// Whether this process is the worker that writes files and shows progress.
bool is_chief(const Placement& placement);
// The strategy for this many replicas, of this worker if it is one of several. The cores are split
// over `most` logical devices.
Strategy make_strategy(const Placement& placement, int replicas, int most);
std::string strategy_name(const Placement& placement, int replicas);
// ", mixed_float16" for the headline of a run; for float32, nothing on CPUs, and on GPUs whether
// products use TF32.
std::string precision_text(const Placement& placement, const Strategy& strategy);

// --batch-per-replica and --global-batch: one follows from the other and the number of replicas.
struct BatchFlags {
  std::int64_t per_replica = 0;  // 0: not given
  std::int64_t global = 0;
};
void add_batch(Command app, BatchFlags& flags);
// Samples per step on all replicas; `otherwise` is the default per replica. UsageError if both
// flags were given and disagree, or there are fewer samples than replicas. Pieces may be uneven.
std::int64_t global_batch(const BatchFlags& flags, int replicas, std::int64_t otherwise);
// The batch of each replica; UsageError also if the global batch is not a multiple of `replicas`.
std::int64_t batch_per_replica(const BatchFlags& flags, int replicas, std::int64_t otherwise);

// Each adds a command to the program, which runs if it is named on the command line.
void add_train(Program& program);
void add_bench(Program& program);
void add_plan(Program& program);
void add_devices(Program& program);
void add_evaluate(Program& program);
void add_explain(Program& program);
void add_predict(Program& program);
void add_plot(Program& program);
void add_find_lr(Program& program);
void add_launch(Program& program);
void add_scale(Program& program);
void add_watch(Program& program);

}  // namespace lockstep::cli
