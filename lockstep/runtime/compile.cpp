// Session::compile: from traced graphs to executors, the same on all ranks. Whatever ranks must
// have in common is agreed by value: bucket cuts, the layouts of variables, and, as a digest of the
// communication schedule, the kinds, types, sizes, members and order of all collectives.
#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/error.h"
#include "lockstep/distribute/schedule.h"
#include "lockstep/graph/ops/remark.h"
#include "lockstep/graph/ops/update.h"
#include "lockstep/plan/slices_in_place.h"
#include "lockstep/runtime/pass_list.h"
#include "lockstep/runtime/session.h"

namespace lockstep {
namespace {

// Whether variables that a graph gathers in place are contiguous, where they are known.
bool gathers_in_place(const State& state, const Graph& graph) {
  for (const Node& node : graph.nodes()) {
    if (node.op != Op::AllGather) continue;
    std::vector<VariableRef> variables;
    for (ValueId id : gathered_variables(graph, node)) {
      variables.push_back(graph.producer(id).variable);
    }
    const auto known = std::ranges::count_if(
        variables, [&](const VariableRef& variable) { return state.has(*variable); });
    if (known == 0) continue;
    if (known < std::ssize(variables) || !state.is_contiguous(variables)) return false;
  }
  return true;
}

}  // namespace

// On devices that share the host's memory there is nothing to keep elsewhere.
MemoryOptions Session::memory_on_device(const CompileRequest& request) {
  MemoryOptions memory = request.memory;
  const Device& device = world_->device(request.rank);
  if (memory.offload == Offload::None || !device.shares_host_memory()) return memory;
  memory.offload = Offload::None;
  remark(fmt::format(
      "offload = optimizer changes nothing on {}: the optimizer's state is in host memory already",
      device.name()));
  return memory;
}

void Session::remark(std::string sentence) {
  if (std::ranges::find(remarks_, sentence) == remarks_.end()) {
    remarks_.push_back(std::move(sentence));
  }
}

void Session::collect_remarks(const Graph& graph) {
  for (std::string& sentence : lockstep::remarks(graph)) remark(std::move(sentence));
}

void Session::distribute(std::span<CompileRequest> requests) {
  // A graph that updates parameters decides which of them ranks have slices of; others follow.
  ParameterGroups sliced = sliced_groups();
  const auto run_all = [&] {
    for (CompileRequest& request : requests) {
      const bool decides = trains(request.graph);
      run_passes(request.graph,
                 distribute_passes(
                     request.precision, memory_on_device(request),
                     {.rank = world_->rank(request.rank),
                      .ranks = world_->size(),
                      .sizes = world_->buckets(),
                      .cuts = &bucket_cuts_,
                      .rounding = {.dtype = request.memory.gradients, .feedback = &error_feedback_},
                      .groups = !decides                    ? &sliced
                                : request.memory.shard == 3 ? &parameter_groups_
                                                            : nullptr},
                     request.accumulation));
    }
  };
  // All cut gradients into buckets as the first rank does.
  world_->buckets();
  world_->on_chief(run_all);
  if (world_->workers() == 1) return;
  const std::string cuts = world_->exchange(bucket_cuts_.serialize()).front();
  if (world_->chief()) return;
  bucket_cuts_ = BucketCuts::parse(cuts);
  run_all();
}

ParameterGroups Session::sliced_groups() const {
  const State& first = *states_.front();
  ParameterGroups sliced;
  for (const ParameterGroups::Group& group : parameter_groups_.all()) {
    const Variable& member = *group.front();
    if (first.has(member) && first.is_sharded(member)) sliced.add(group);
  }
  return sliced;
}

bool Session::wants_other_slices(std::span<const CompileRequest> requests) {
  bool others = false;
  for (const CompileRequest& request : requests) {
    const State& state = *states_[static_cast<std::size_t>(request.rank)];
    for (const Node& node : request.graph.nodes()) {
      if (node.op != Op::Variable || !state.has(*node.variable)) continue;
      others = others || state.is_sharded(*node.variable) != node.attrs.has("begin") ||
               state.slice(*node.variable) != slice_of_variable(node);
    }
  }
  if (world_->workers() == 1) return others;
  const std::vector<std::string> all = world_->exchange(others ? "1" : "0");
  return std::ranges::find(all, "1") != all.end();
}

// The layouts of variables that all workers would choose for a step; where they do not agree, the
// variable is row-major on all: blocks of one instruction set are not those of another.
LayoutOf Session::agreed_layouts(const Graph& graph) {
  std::string mine;
  std::vector<VariableRef> variables;
  std::vector<Layout> own;
  for (const Node& node : graph.nodes()) {
    if (node.op != Op::Variable) continue;
    variables.push_back(node.variable);
    own.push_back(graph.info(node.outputs[0]).layout);
    mine += own.back().str() + "\n";
  }
  std::vector<std::vector<std::string>> all;
  for (const std::string& theirs : world_->exchange(mine)) {
    std::istringstream lines(theirs);
    std::vector<std::string>& list = all.emplace_back();
    for (std::string line; std::getline(lines, line);) list.push_back(line);
    require(list.size() == variables.size(),
            "[world] worker {} has {} variables in its step and worker {} has {}: all workers must "
            "train the same model with the same options",
            world_->worker(), variables.size(), all.size() - 1, list.size());
  }
  std::map<const Variable*, Layout> agreed;
  for (std::size_t v = 0; v < variables.size(); ++v) {
    const bool same = std::ranges::all_of(all, [&](const auto& list) {
      return list[v] == all[static_cast<std::size_t>(world_->worker())][v];
    });
    agreed[variables[v].get()] = same ? own[v] : Layout();
  }
  return [agreed](const Variable& variable) {
    const auto found = agreed.find(&variable);
    return found == agreed.end() ? std::nullopt : std::optional(found->second);
  };
}

// UsageError, naming two ranks and the first collective that differs, where ranks would not run the
// same collectives in the same order.
void Session::expect_same_schedule(std::span<const std::string> schedules) {
  if (world_->size() == 1) return;
  std::string digests;
  for (const std::string& schedule : schedules) {
    digests += fmt::format("{} {}\n", schedule.size(), crc32c(schedule));
  }
  std::set<std::string> different;
  for (const std::string& theirs : world_->exchange(digests)) {
    std::istringstream lines(theirs);
    for (std::string line; std::getline(lines, line);) different.insert(line);
  }
  if (different.size() <= 1) return;
  std::string mine;
  for (const std::string& schedule : schedules) mine += schedule + '\0';
  std::vector<std::string> all;
  for (const std::string& theirs : world_->exchange(mine)) {
    for (std::size_t begin = 0; begin < theirs.size();) {
      const std::size_t end = theirs.find('\0', begin);
      all.push_back(theirs.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  for (std::size_t r = 1; r < all.size(); ++r) {
    const auto difference = first_difference(all[0], all[r]);
    if (!difference) continue;
    const auto shown = [](const std::string& line) { return line.empty() ? "nothing" : line; };
    fail<UsageError>(
        "[world] replica 0 ({}) and replica {} ({}) would not run the same collectives: number {} "
        "is '{}' on the first and '{}' on the other; all replicas must train the same model with "
        "the same options and version",
        world_->names()[0], r, world_->names()[r], difference->line, shown(difference->first),
        shown(difference->second));
  }
}

LayoutOf Session::layouts_of_variables() const {
  return [this](const Variable& variable) {
    const State& first = *states_.front();
    return first.has(variable) ? std::optional(first.layout(variable)) : std::nullopt;
  };
}

// The first graph decides what is open; the others follow, so that layouts are the same on all.
void Session::optimize_all(std::span<CompileRequest> requests, const LayoutOf& known,
                           const std::function<LayoutOf(const Graph& first)>& follow) {
  CompileRequest& first = requests.front();
  if (!known && world_->workers() > 1) {
    Graph proposal = clone(first.graph);
    optimize(proposal, kernels(first.rank));
    optimize(first.graph, kernels(first.rank), agreed_layouts(proposal));
  } else {
    optimize(first.graph, kernels(first.rank), known);
  }
  const LayoutOf layouts = follow(first.graph);
  std::vector<std::string> schedules(requests.size());
  world_->run([&](int local) {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (requests[i].rank != local) continue;
      if (i > 0) optimize(requests[i].graph, kernels(local), layouts);
      if (world_->size() > 1) schedules[i] = describe_schedule(requests[i].graph);
    }
  });
  expect_same_schedule(schedules);
}

std::vector<std::unique_ptr<Executor>> Session::compile(std::vector<CompileRequest> requests) {
  const PhaseScope start(*phases_, Phase::Start);
  const ActivityScope planning(*world_, "planning");
  for (const CompileRequest& request : requests) collect_remarks(request.graph);
  distribute(requests);
  const std::vector<VariableRef> known = states_.front()->variables();
  const bool decides =
      trains(requests.front().graph) && (!laid_out_ || wants_other_slices(requests));
  ensure(!decides || std::ssize(requests) == local_size(), "{} of {} ranks lay out their variables",
         requests.size(), local_size());
  optimize_all(requests, decides ? LayoutOf() : layouts_of_variables(), [&](const Graph& first) {
    if (decides || !gathers_in_place(*states_.front(), first)) {
      lay_out(first, requests);
    } else {
      add(first, requests);
    }
    return layouts_of_variables();
  });
  std::vector<std::unique_ptr<Executor>> executors(requests.size());
  world_->run([&](int local) {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (requests[i].rank != local) continue;
      const std::optional<DType> precision = requests[i].precision;
      Plan plan = plan_rank(std::move(requests[i]));
      if (plan.host_bytes > 0) expect_bus_keeps_up(plan, local, precision);
      executors[i] = std::make_unique<Executor>(
          std::move(plan), kernels(local), *states_[static_cast<std::size_t>(local)],
          ExecutorOptions{.recorder = record_ ? recorder_.get() : nullptr,
                          .track = track(local).name(),
                          .host_track = host_track_->name(),
                          .compute_comm = world_->communicator(local, kComputeStream),
                          .gradient_comm = world_->communicator(local, kCommunicationStream)});
    }
  });
  mirror_new(known);
  return executors;
}

std::vector<Plan> Session::plan(std::vector<CompileRequest> requests) {
  std::vector<std::vector<CompileRequest>> steps;
  steps.push_back(std::move(requests));
  return std::move(plan_all(std::move(steps)).front());
}

std::vector<std::vector<Plan>> Session::plan_all(std::vector<std::vector<CompileRequest>> steps) {
  const PhaseScope start(*phases_, Phase::Start);
  std::map<const Variable*, Layout> decided;
  const LayoutOf decided_or_there = [&](const Variable& variable) {
    const auto found = decided.find(&variable);
    return found != decided.end() ? std::optional(found->second) : layouts_of_variables()(variable);
  };
  std::vector<std::vector<Plan>> plans;
  for (std::vector<CompileRequest>& requests : steps) {
    distribute(requests);
    const bool decides = !laid_out_ && decided.empty() && trains(requests.front().graph);
    optimize_all(requests, decides ? LayoutOf() : decided_or_there, [&](const Graph& first) {
      for (const Node& node : first.nodes()) {
        if (node.op != Op::Variable) continue;
        decided[node.variable.get()] = first.info(node.outputs[0]).layout;
      }
      return decided_or_there;
    });
    for (std::size_t i = 0; i < requests.size() && !plans.empty(); ++i) {
      requests[i].variable_bytes = plans.front()[i].variable_bytes;
    }
    plans.push_back(make_plans(std::move(requests)));
  }
  return plans;
}

std::vector<Plan> Session::make_plans(std::vector<CompileRequest> requests) {
  std::vector<Plan> plans(requests.size());
  world_->run([&](int local) {
    world_->device(local).make_current();
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (requests[i].rank != local) continue;
      plans[i] = plan_rank(std::move(requests[i]));
    }
  });
  return plans;
}

Plan Session::plan_rank(CompileRequest request) const {
  const KernelLibrary& library = kernels(request.rank);
  recompute_pass(library, request.memory.recompute, *world_, request.rank, request.variable_bytes)
      ->run(request.graph);
  return make_plan(std::move(request.graph), library);
}

void Session::expect_bus_keeps_up(const Plan& plan, int local, std::optional<DType> precision) {
  Device& device = world_->device(local);
  std::optional<OffloadRates>& rates = offload_rates_[static_cast<std::size_t>(local)];
  if (!rates) rates = measure_offload(device, kernels(local), precision);
  expect_offload_keeps_up(plan, *rates, device.name());
}

bool trains(const Graph& graph) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(), [](const Node& node) {
    return node.op == Op::Update && !is_accumulation(node);
  });
}

}  // namespace lockstep
