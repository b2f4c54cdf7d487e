// RunProfile: what a run recorded about its time, for `explain`, `scale` and the pictures. Its size
// does not grow with the length of the run: windows of steps are merged as they become many, and of
// single steps only a few examples are kept, typical and slow ones.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/distribute/buckets.h"
#include "lockstep/explain/explanation.h"
#include "lockstep/explain/learning.h"
#include "lockstep/explain/step_memory.h"
#include "lockstep/profile/recorder.h"

namespace lockstep {

// Seconds of a replica, over the run; they add up to the run's.
struct TimeParts {
  double compute = 0;
  double communication = 0;  // exposed
  double input = 0;
  double wait = 0;  // for other replicas
  double host = 0;
  double start = 0;
  double validation = 0;
  double checkpoint = 0;

  double sum() const {
    return compute + communication + input + wait + host + start + validation + checkpoint;
  }
};

struct ReplicaProfile {
  std::string device;
  int worker = 0;
  std::int64_t samples = 0;
  TimeParts time = {};
};

// Steps that follow one another: means per step and replica.
struct StepWindow {
  std::int64_t first = 0;  // step
  std::int64_t steps = 0;
  double step_s = 0;
  std::vector<double> compute_s = {};  // by replica
  std::vector<double> input_s = {};    // by replica: waiting for its worker's input
  std::vector<double> wait_s = {};     // by replica
  std::vector<double> samples = {};    // by replica
};

struct ProfiledSpan {
  std::string name;
  SpanKind kind = SpanKind::Host;
  double begin_s = 0;  // since the step began, on the chief's clock
  double end_s = 0;
};
struct ProfiledTrack {
  std::string name;  // "cpu:0", "cpu:0 communication", "host"
  int worker = 0;
  double clock_error_s = 0;  // of its worker's clock against the chief's
  std::vector<ProfiledSpan> spans = {};
};
struct ExampleStep {
  std::int64_t step = 0;
  double seconds = 0;
  bool slow = false;  // else a typical one
  std::vector<ProfiledTrack> tracks = {};
};

// The collectives of one node of the plan, seen by the first replica of the chief.
struct CollectiveProfile {
  std::string name;
  std::int64_t bytes = 0;
  double seconds = 0;    // median, from its start, or the end of the one before it, to its end
  double exposed_s = 0;  // mean per step, in which the replica did nothing else
};

// An instruction of the plan of a training step, as a dependency graph.
struct PlannedInstruction {
  std::string name;             // of its spans
  std::vector<int> after = {};  // collectives whose results or memory it needs
};

// An all-reduce of all ranks: what it costs before the first byte, and for each one.
struct LinkFit {
  double latency_s = 0;
  double s_per_byte = 0;
};

struct InputStageProfile {
  std::string name;
  int depth = 0;
  double busy_s = 0;
  double wait_s = 0;
  int threads = 1;
};

struct RecoveryProfile {
  std::string cause;
  std::int64_t step = 0;
  std::int64_t lost_steps = 0;
  double seconds = 0;
};

struct RunProfile {
  std::string model;
  std::string precision;
  std::string hardware;
  std::string transport;  // of several workers
  int replicas = 1;
  int workers = 1;
  std::int64_t global_batch = 0;
  bool balanced = false;
  std::int64_t steps = 0;
  std::int64_t samples = 0;
  double seconds = 0;
  double callback_s = 0;  // part of host
  double planned_s = 0;   // part of start
  double step_s = 0;      // median
  double step_p99_s = 0;
  std::size_t peak_bytes = 0;
  std::vector<ReplicaProfile> by_replica = {};
  std::vector<StepWindow> windows = {};
  std::vector<ExampleStep> examples = {};
  std::vector<CollectiveProfile> collectives = {};
  std::vector<PlannedInstruction> plan = {};
  LinkFit link = {};  // measured at the start, nothing else going on; zeros: not measured
  std::vector<InputStageProfile> stages = {};
  double input_seconds = 0;  // that they are about: of the last pass over the data; 0: not known
  std::string input_limit;   // the stage that limits the input
  std::string input_advice;
  std::vector<RecoveryProfile> recoveries = {};
  std::optional<Predicted> predicted = {};
  StepMemory memory = {};  // of a step, on a device; empty: not known
  Learning learning = {};
};

// What workers measured of an all-reduce to choose their buckets (World::buckets), as a line.
LinkFit link_fit(const LinkSpeed& measured, bool over_a_network);

// Whether the workers are on several hosts; those of one meet in shared memory.
bool is_over_a_network(const RunProfile& profile);
int replicas_per_host(const RunProfile& profile);

inline constexpr const char* kProfileFile = "profile.json";

std::string to_json(const RunProfile& profile);
// DataError, naming `what`, if the text is damaged, or not a profile.
RunProfile run_profile_from_json(const std::string& text, const std::string& what);

}  // namespace lockstep
