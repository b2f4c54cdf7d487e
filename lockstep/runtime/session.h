// Session: the state of one or more models on the ranks of a world. It holds the variables of every
// local rank, compiles steps for them, and records what ran. Models that one Function trains share
// a session.
//
// Reading, setting and compiling are collective: every worker makes the same calls in the same
// order.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/distribute/bucket_cuts.h"
#include "lockstep/distribute/error_feedback.h"
#include "lockstep/distribute/gathers.h"
#include "lockstep/exec/executor.h"
#include "lockstep/exec/state.h"
#include "lockstep/kernels/kernel.h"
#include "lockstep/passes/accumulate.h"
#include "lockstep/passes/memory_options.h"
#include "lockstep/passes/pipeline.h"
#include "lockstep/profile/phase_clock.h"
#include "lockstep/profile/recorder.h"
#include "lockstep/runtime/offload_check.h"
#include "lockstep/runtime/world.h"

namespace lockstep {

struct SessionOptions {
  std::shared_ptr<World> world = {};       // none: one rank, on `device`
  Device* device = nullptr;                // none: the first GPU, or all cores
  const KernelLibrary* kernels = nullptr;  // none: those of the devices
  std::uint64_t seed = 0;
  bool record = true;  // false: nodes leave no spans; to measure what recording costs
};

// A step's graph that is to be compiled for a local rank.
struct CompileRequest {
  int rank = 0;
  Graph graph = {};
  std::optional<DType> precision = {};  // the 16-bit type, in mixed precision
  MemoryOptions memory = {};
  Accumulation accumulation = {};
  // Of all variables that the rank has, where these are more than the graph's: a budget for memory
  // counts them.
  std::size_t variable_bytes = 0;
};

class Session {
 public:
  explicit Session(const SessionOptions& options);

  // Runs the passes over the graphs (pass_list.h), plans them and makes their executors, on all
  // ranks at the same time. The first graph that updates parameters decides the layouts of
  // variables, the same on all ranks: variables that had other layouts are converted, the layout
  // version changes, and executors made before must be dropped. So does a later one that wants
  // ranks to have other slices of variables. Such a graph must be compiled for all ranks together.
  std::vector<std::unique_ptr<Executor>> compile(std::vector<CompileRequest> requests);
  // The plans that the executors of such requests would run, and no executors: nothing is allocated
  // and no variable is initialised, so that a step can be planned that fits nowhere.
  std::vector<Plan> plan(std::vector<CompileRequest> requests);
  // The same for several steps of one model, each for all ranks: the first decides the layouts of
  // variables for all, and has all of them.
  std::vector<std::vector<Plan>> plan_all(std::vector<std::vector<CompileRequest>> steps);
  std::uint64_t layout_version() const { return layout_version_; }

  // The value of a variable, which is added, with its initial value, where it is new. Of a variable
  // that every rank has its own part of, the sum.
  Tensor get(const VariableRef& variable);
  // Afterwards get() gives this value: every rank has it, or, of a sum, the first one does and the
  // others have zeros.
  void set(const VariableRef& variable, const Tensor& value);
  bool has(const Variable& variable) const { return states_.front()->has(variable); }
  // Whether get() is collective: it adds the variable, or asks the other workers for their parts.
  bool asks_others(const Variable& variable) const;
  // A copy of some rows of a variable for which get() asks nobody: State::copy_rows.
  void copy_rows(const Variable& variable, std::int64_t begin, std::int64_t rows,
                 VariableImage& image) const {
    states_.front()->copy_rows(variable, begin, rows, image);
  }
  // Takes over values that another session has.
  void take(Session& other, std::span<const VariableRef> variables);
  // InternalError, naming the variable and the ranks, where a mirrored variable does not have the
  // same bits on all ranks.
  void expect_mirrored();
  // Gives all ranks the first one's values of mirrored variables, after a step that failed midway:
  // some ranks may have made more of the update than others.
  void resync();

  // What rounding gradients to 16 bits has lost (distribute/error_feedback.h).
  ErrorFeedback& error_feedback() { return error_feedback_; }

  // By rank of the world, the parts that get() adds up.
  std::vector<Tensor> get_parts(const VariableRef& variable);
  // Gives every rank the part that it had; there must be as many as ranks.
  void set_parts(const VariableRef& variable, std::span<const Tensor> parts);
  // Drops all variables and what was agreed with other ranks, as in a new session. What was
  // compiled must be gone.
  void clear();

  // Calls f(local rank) on the thread of every local rank, and records what each did besides.
  template <class F>
  void run(F&& f) {
    world_->run(std::forward<F>(f), tracks_);
  }
  // The same; what tell() returns on every worker, by worker (World::run_and_exchange).
  template <class F>
  std::vector<std::string> run_and_exchange(F&& f, const std::function<std::string()>& tell) {
    return world_->run_and_exchange(std::forward<F>(f), tracks_, tell);
  }

  World& world() const { return *world_; }
  const std::shared_ptr<World>& shared_world() const { return world_; }
  int local_size() const { return world_->local_size(); }
  Device& device() const { return world_->device(0); }
  // Host memory that the devices copy from without help: World::batch_memory.
  Device* batch_memory() const { return world_->batch_memory(); }
  Recorder& recorder() { return *recorder_; }
  // What a local rank does is on its track. If one rank is alone and run by the caller, what the
  // caller does for it (input, callbacks) is on the same track; otherwise on the track "host".
  Track& track(int local) { return *tracks_[static_cast<std::size_t>(local)]; }
  std::vector<const Track*> tracks() const { return {tracks_.begin(), tracks_.end()}; }
  Track& host_track() { return *host_track_; }
  // Time that went into planning, validation and saving. compile() counts as start.
  PhaseClock& phases() { return *phases_; }

  // What is allocated on the device of the replica that has most (State::resident_bytes).
  std::size_t resident_bytes() const;

  // Sentences for the user that the graphs carried (graph/ops/remark.h), each once.
  const std::vector<std::string>& remarks() const { return remarks_; }
  void remark(std::string sentence);

  // Training steps run so far.
  std::int64_t step = 0;

 private:
  const KernelLibrary& kernels(int local) const;
  void collect_remarks(const Graph& graph);
  MemoryOptions memory_on_device(const CompileRequest& request);
  // UsageError if a rank's step would wait for variables in host memory.
  void expect_bus_keeps_up(const Plan& plan, int local, std::optional<DType> precision);
  void distribute(std::span<CompileRequest> requests);
  // Those groups of parameters of which the ranks have slices now.
  ParameterGroups sliced_groups() const;
  // Whether variables are not stored as graphs that update parameters want them: whole where ranks
  // should have slices, or the other way round. The same on all workers.
  bool wants_other_slices(std::span<const CompileRequest> requests);
  LayoutOf layouts_of_variables() const;
  LayoutOf agreed_layouts(const Graph& graph);
  void optimize_all(std::span<CompileRequest> requests, const LayoutOf& known,
                    const std::function<LayoutOf(const Graph& first)>& follow);
  std::vector<Plan> make_plans(std::vector<CompileRequest> requests);
  // Runs the last pass and plans; on the thread of the rank.
  Plan plan_rank(CompileRequest request) const;
  void expect_same_schedule(std::span<const std::string> schedules);
  // Gives the local ranks the variables of the first graph, in its layouts, each in its own slices.
  void lay_out(const Graph& first, std::span<const CompileRequest> requests);
  void add(const Graph& first, std::span<const CompileRequest> requests);
  // Adds a variable that is missing, on every rank, with the first one's bits.
  void add(const VariableRef& variable);
  void mirror_new(std::span<const VariableRef> known);
  void mirror(std::span<const VariableRef> variables);
  // The whole of a variable of which every rank has a slice.
  Tensor gather(const Variable& variable);

  std::shared_ptr<World> world_;
  const KernelLibrary* kernels_;
  std::uint64_t seed_;
  bool record_;
  std::unique_ptr<Recorder> recorder_;
  std::vector<Track*> tracks_;
  Track* host_track_;
  std::unique_ptr<PhaseClock> phases_;
  std::vector<std::unique_ptr<State>> states_;  // one per local rank
  std::vector<std::string> remarks_;
  BucketCuts bucket_cuts_;
  ErrorFeedback error_feedback_;
  std::vector<std::optional<OffloadRates>> offload_rates_;  // by local rank; measured when needed
  ParameterGroups parameter_groups_;
  bool laid_out_ = false;
  std::uint64_t layout_version_ = 0;
};

// Whether a graph updates parameters, by an optimizer.
bool trains(const Graph& graph);

}  // namespace lockstep
