#include "lockstep/train/solo_step.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/graph/ops/collective.h"
#include "lockstep/runtime/pass_list.h"

namespace lockstep {
namespace {

class NoCollective final : public Collective {
 public:
  void start() override {}
  bool poll() override { return true; }
  void await_ranks() override {}
  void finish() override {}
  void issue(Stream&) override {}
};

// A rank of a group in which nothing happens.
class SoloCommunicator final : public Communicator {
 public:
  explicit SoloCommunicator(int ranks) : ranks_(ranks) {}
  int rank() const override { return 0; }
  int size() const override { return ranks_; }
  int max_in_flight() const override { return 64; }
  SumOrder sum_order() const override { return SumOrder::RankOrder; }
  std::unique_ptr<Collective> all_reduce(std::span<std::byte>, DType) override { return none(); }
  std::unique_ptr<Collective> reduce_scatter(std::span<std::byte>, DType) override {
    return none();
  }
  std::unique_ptr<Collective> all_gather(std::span<std::byte>, DType) override { return none(); }
  std::unique_ptr<Collective> broadcast(std::span<std::byte>, int) override { return none(); }
  void abort(const Failure&) override {}

 private:
  static std::unique_ptr<Collective> none() { return std::make_unique<NoCollective>(); }
  int ranks_;
};

double middle(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto at = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, at);
  return *at;
}

// Noise, labels of two classes, weights of one; accumulators begin anew.
void fill_input(const std::string& name, Tensor& tensor) {
  RandomSequence random(1, 1);
  if (tensor.dtype() == DType::I32 && name == "y") {
    for (std::int32_t& label : tensor.values<std::int32_t>()) {
      label = static_cast<std::int32_t>(random.next() & 1);
    }
  }
  if (tensor.dtype() != DType::F32) return;
  if (name == kAccumulatedInput) {
    tensor.values<float>()[0] = 0;
    return;
  }
  for (float& value : tensor.values<float>()) {
    const float noise = (random.uniform() - 0.5f) * 3.464f;
    value = name == "sample_weight" ? 1 : name == "y" ? static_cast<float>(noise > 0) : noise;
  }
}

// From traced graphs to plans, as a session does it, for one rank.
class SoloPlanner {
 public:
  SoloPlanner(World& world, int local, const StepRecipe& recipe, const SoloOptions& options)
      : world_(world),
        local_(local),
        recipe_(recipe),
        options_(options),
        memory_(recipe.memory),
        kernels_(world.kernels(local)) {
    if (world.device(local).shares_host_memory()) memory_.offload = Offload::None;
  }

  // The last micro-batch, or all of a step without others, is planned first: it decides on the
  // layouts of variables and on their slices.
  Plan plan(const ModelStep& step, MicroForm form) {
    const bool decides = form != MicroForm::Add;
    Graph graph = trace_step(recipe_, step);
    run_passes(graph,
               distribute_passes(recipe_.precision, memory_,
                                 {.rank = 0,
                                  .ranks = options_.ranks,
                                  .sizes = options_.buckets,
                                  .rounding = {.dtype = memory_.gradients, .feedback = &feedback_},
                                  .groups = !decides || memory_.shard == 3 ? &groups_ : nullptr},
                                 {.form = form, .accumulators = recipe_.accumulators}));
    world_.device(local_).make_current();
    optimize(
        graph, kernels_, decides ? LayoutOf() : [this](const Variable& variable) {
          const auto found = layouts_.find(&variable);
          return found == layouts_.end() ? std::nullopt : std::optional(found->second);
        });
    for (const Node& node : graph.nodes()) {
      if (decides && node.op == Op::Variable) {
        layouts_[node.variable.get()] = graph.info(node.outputs[0]).layout;
      }
    }
    recompute_pass(kernels_, memory_.recompute, world_, local_, variable_bytes_)->run(graph);
    Plan plan = make_plan(std::move(graph), kernels_);
    if (decides) variable_bytes_ = plan.variable_bytes;
    return plan;
  }

 private:
  World& world_;
  int local_;
  const StepRecipe& recipe_;
  const SoloOptions& options_;
  MemoryOptions memory_;
  const KernelLibrary& kernels_;
  ErrorFeedback feedback_;
  ParameterGroups groups_;
  std::map<const Variable*, Layout> layouts_;
  std::size_t variable_bytes_ = 0;
};

}  // namespace

StepPlans solo_plans(World& world, int local, const StepRecipe& recipe, ModelStep step,
                     std::int64_t samples, const SoloOptions& options) {
  const bool scaled = !recipe.optimizer.loss_scale_variables().empty();
  step.global_batch = scaled ? samples * options.ranks : 0;
  const auto with_rows = [&](std::int64_t rows) {
    ModelStep micro = step;
    for (ValueType& input : micro.inputs) input.shape = input.shape.with(0, rows);
    if (micro.labels.shape.rank() > 0) micro.labels.shape = micro.labels.shape.with(0, rows);
    return micro;
  };
  const std::int64_t parts = std::max<std::int64_t>(1, recipe.memory.accumulate);
  const std::int64_t rows = (samples + parts - 1) / parts;
  const std::int64_t earlier = (samples + rows - 1) / rows - 1;
  SoloPlanner planner(world, local, recipe, options);
  StepPlans plans;
  plans.step.push_back(planner.plan(with_rows(samples - earlier * rows),
                                    earlier > 0 ? MicroForm::Last : MicroForm::Whole));
  if (earlier == 0) return plans;
  plans.kinds.emplace_back().push_back(planner.plan(with_rows(rows), MicroForm::Add));
  plans.turns.assign(static_cast<std::size_t>(earlier), 0);
  return plans;
}

struct SoloStep::Parts {
  Parts(World& world, int local, StepPlans plans, std::uint64_t seed, int ranks)
      : device(world.device(local)),
        communicator(ranks),
        state(device, seed),
        last(std::move(plans.step.front()), world.kernels(local), state, options("solo")),
        turns(plans.turns.size()) {
    if (turns > 0) {
      earlier = std::make_unique<Executor>(std::move(plans.kinds.front().front()),
                                           world.kernels(local), state, options("earlier"));
    }
  }

  ExecutorOptions options(const char* track) {
    return {.recorder = &recorder,
            .track = track,
            .compute_comm = &communicator,
            .gradient_comm = &communicator};
  }
  // By instruction of an executor, from its spans or from the device.
  std::vector<double> seconds_of(Executor& executor, const char* track);

  Device& device;
  SoloCommunicator communicator;
  Recorder recorder;
  State state;
  Executor last;
  std::unique_ptr<Executor> earlier;
  std::size_t turns;  // of it, in a step
  bool filled = false;
};

SoloStep::SoloStep(World& world, int local, StepPlans plans, std::uint64_t seed, int ranks) {
  parts_ = std::make_unique<Parts>(world, local, std::move(plans), seed, ranks);
  const auto fill = [](Executor& executor) {
    for (const auto& [name, id] : executor.plan().graph.inputs()) {
      Tensor memory = executor.input(name);
      fill_input(name, memory);
    }
  };
  fill(parts_->last);
  if (parts_->earlier) fill(*parts_->earlier);
}

namespace {
StepPlans only(Plan plan) {
  StepPlans plans;
  plans.step.push_back(std::move(plan));
  return plans;
}
}  // namespace

SoloStep::SoloStep(World& world, int local, Plan plan, std::uint64_t seed)
    : SoloStep(world, local, only(std::move(plan)), seed, SoloOptions().ranks) {}

SoloStep::~SoloStep() {
  if (parts_->earlier) parts_->earlier->wait();
  parts_->last.wait();
}

void SoloStep::run() {
  const Inputs inputs = parts_->filled ? Inputs::AsBefore : Inputs::Filled;
  for (std::size_t turn = 0; turn < parts_->turns; ++turn) {
    parts_->earlier->run(turn == 0 ? inputs : Inputs::AsBefore);
  }
  parts_->last.run(inputs);
  parts_->filled = true;
}

void SoloStep::wait() {
  parts_->last.wait();
}

const Plan& SoloStep::plan() const {
  return parts_->last.plan();
}

std::vector<double> SoloStep::instruction_seconds() {
  return parts_->seconds_of(parts_->last, "solo");
}

std::vector<double> SoloStep::earlier_seconds() {
  if (!parts_->earlier) return {};
  return parts_->seconds_of(*parts_->earlier, "earlier");
}

std::vector<double> SoloStep::Parts::seconds_of(Executor& executor, const char* track) {
  std::vector<double> seconds = executor.profile();
  if (!seconds.empty()) {
    for (double& each : seconds) each *= 1e-3;
    return seconds;
  }
  // Instructions of the same name run in plan order, so spans are matched from the last one back.
  const Plan& plan = executor.plan();
  std::vector<std::string> names;
  std::map<std::string_view, std::vector<std::size_t>> instructions;
  for (const Instruction& each : plan.instructions) {
    names.push_back(span_name(plan.graph.node(each.node)));
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!is_collective(plan.graph.node(plan.instructions[i].node))) {
      instructions[names[i]].push_back(i);
    }
  }
  std::map<std::string_view, std::size_t> seen;
  std::vector<std::vector<double>> times(names.size());
  const std::vector<Span> spans = recorder.track(track).spans();
  for (auto span = spans.rbegin(); span != spans.rend(); ++span) {
    const auto found = instructions.find(span->name);
    if (span->kind != SpanKind::Compute || found == instructions.end()) continue;
    const std::size_t same = found->second.size();
    const std::size_t from_last = seen[found->first]++ % same;
    times[found->second[same - 1 - from_last]].push_back(
        static_cast<double>(span->end_ns - span->begin_ns) * 1e-9);
  }
  for (const std::vector<double>& each : times) seconds.push_back(middle(each));
  return seconds;
}

}  // namespace lockstep
