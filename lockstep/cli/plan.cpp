// lockstep plan: the schedule of one training step, and what it would need of each device's memory.
// Nothing runs and nothing is allocated, so that what would not fit can be planned.
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "lockstep/cli/command.h"
#include "lockstep/cli/format.h"
#include "lockstep/cli/memory_fit.h"
#include "lockstep/cli/step_run.h"
#include "lockstep/graph/op_def.h"
#include "lockstep/graph/recomputed.h"
#include "lockstep/train/step_memory.h"
#include "lockstep/train/strategy_impl.h"

namespace lockstep::cli {
namespace {

struct PlanOptions {
  std::string model = "mlp";
  BatchFlags batch;
  Placement placement;
  MemoryFlags memory;
  std::string optimizer;
  std::string fit;  // "auto", or bytes
  std::string json;
};

Json as_json(const Plan& plan, const std::string& model, std::int64_t batch) {
  Json json;
  json["model"] = model;
  json["batch_per_replica"] = batch;
  json["steps"] = Json::array();
  for (const Instruction& step : plan.instructions) {
    const Node& node = plan.graph.node(step.node);
    Json entry = {{"op", op_def(node.op).name}, {"name", node.name}, {"flops", step.cost.flops}};
    entry["outputs"] = Json::array();
    for (ValueId id : node.outputs) {
      const Allocation& allocation = plan.values[static_cast<std::size_t>(id)];
      entry["outputs"].push_back({{"type", plan.graph.type(id).str()},
                                  {"layout", plan.graph.info(id).layout.str()},
                                  {"bytes", allocation.bytes},
                                  {"in_arena", allocation.place == Place::Arena},
                                  {"offset", allocation.offset}});
    }
    json["steps"].push_back(std::move(entry));
  }
  json["flops"] = plan.total_cost().flops;
  json["arena_bytes"] = plan.arena_bytes;
  json["input_output_bytes"] = plan.input_output_bytes;
  json["variable_bytes"] = plan.variable_bytes;
  json["constant_bytes"] = plan.constant_bytes;
  json["live_bytes"] = plan.live_bytes;
  json["peak_bytes"] = plan.peak_bytes();
  json["collective_bytes"] = plan.collective_bytes();
  return json;
}

Json as_json(const Resident& resident) {
  return {{"name", resident.device},
          {"variable_bytes", resident.bytes.variables},
          {"accumulator_bytes", resident.accumulator_bytes},
          {"arena_bytes", resident.bytes.arena},
          {"input_output_bytes", resident.bytes.input_output},
          {"constant_bytes", resident.bytes.constants},
          {"resident_bytes", resident.bytes.total()},
          {"memory_bytes", resident.memory_bytes},
          {"fits", resident.fits}};
}

void print_resident(const std::vector<Resident>& all) {
  const auto text = [](std::size_t bytes) { return bytes_text(static_cast<double>(bytes)); };
  std::set<std::string> told;
  for (const Resident& each : all) {
    fmt::print("{}: {} resident: variables {}{}, arena {}, inputs and outputs {}, constants {}\n",
               each.device, text(each.bytes.total()), text(each.bytes.variables),
               each.accumulator_bytes == 0
                   ? std::string()
                   : fmt::format(" (accumulators {})", text(each.accumulator_bytes)),
               text(each.bytes.arena), text(each.bytes.input_output), text(each.bytes.constants));
  }
  for (const Resident& each : all) {
    if (!told.insert(each.memory).second) continue;
    fmt::print("{} of {}, the memory of {}: {}\n", text(each.needed_bytes), text(each.memory_bytes),
               each.memory,
               each.fits ? "fits"
                         : "does not fit; use a smaller batch, 16-bit precision, or --accumulate");
  }
}

// The schedule above is that of the last micro-batch, which also reduces and updates.
void print_micro_batches(const StepPlans& plans) {
  if (plans.turns.empty()) return;
  fmt::print("{} micro-batches, of which this is the last", plans.turns.size() + 1);
  for (std::size_t kind = 0; kind < plans.kinds.size(); ++kind) {
    const Plan& plan = plans.kinds[kind].front();
    fmt::print("; before it {} × {} instructions, {:.3f} GFLOP, arena {}",
               std::ranges::count(plans.turns, kind), plan.instructions.size(),
               plan.total_cost().flops * 1e-9, bytes_text(static_cast<double>(plan.arena_bytes)));
  }
  fmt::print("\n");
}

// What recomputation does to a step: the nodes that are computed again, by op, what they add to the
// step's arithmetic, and the peak without it.
struct Recomputed {
  std::map<std::string, int> nodes = {};
  double flops = 0;
  double step_flops = 0;  // without it
  std::size_t peak_before = 0;
  std::size_t peak_after = 0;
};

Recomputed recomputed_of(const Plan& before, const Plan& after) {
  Recomputed result{.step_flops = before.total_cost().flops,
                    .peak_before = before.peak_bytes(),
                    .peak_after = after.peak_bytes()};
  for (const Instruction& instruction : after.instructions) {
    const Node& node = after.graph.node(instruction.node);
    if (!is_recomputed(node)) continue;
    ++result.nodes[std::string(op_def(node.op).name)];
    result.flops += instruction.cost.flops;
  }
  return result;
}

Json as_json(const Recomputed& recomputed) {
  return {{"nodes", recomputed.nodes},
          {"flops", recomputed.flops},
          {"peak_bytes_before", recomputed.peak_before},
          {"peak_bytes", recomputed.peak_after}};
}

void print_recomputed(const Recomputed& recomputed) {
  std::string nodes;
  for (const auto& [op, count] : recomputed.nodes) {
    nodes += fmt::format("{}{} {}", nodes.empty() ? "" : ", ", count, op);
  }
  fmt::print("computed again: {}; {:.3f} GFLOP more ({:.1f}%), peak {} instead of {}\n",
             nodes.empty() ? "nothing" : nodes, recomputed.flops * 1e-9,
             100 * recomputed.flops / recomputed.step_flops,
             bytes_text(static_cast<double>(recomputed.peak_after)),
             bytes_text(static_cast<double>(recomputed.peak_before)));
}

void run(const PlanOptions& options) {
  check_target("--json", options.json);
  const int replicas = one_count(options.placement);
  const Strategy strategy = make_strategy(options.placement, replicas, replicas);
  const std::int64_t batch =
      batch_per_replica(options.batch, replicas, zoo_entry(options.model).batch);
  StepRunOptions step{.model = options.model,
                      .batch = batch,
                      .optimizer = options.optimizer,
                      .precision = options.placement.precision,
                      .memory = memory_options(options.memory)};
  if (!options.fit.empty()) {
    const MemoryProposal proposal = propose(strategy, step, options.fit);
    if (!is_standard_output(options.json)) print_proposal(proposal);
    Json json = proposal_json(proposal);
    json["model"] = options.model;
    json["batch_per_replica"] = batch;
    write_json(json, options.json);
    return;
  }
  const StepPlans plans = plan_step(strategy, step);
  std::optional<Recomputed> recomputed;
  if (step.memory.recompute != Recompute()) {
    step.memory.recompute = {};
    step.memory.accumulate = std::ssize(plans.turns) + 1;
    recomputed = recomputed_of(plan_step(strategy, step).step.front(), plans.step.front());
  }
  const std::vector<Resident> resident = residents(*impl_of(strategy).world, plans);
  if (!is_standard_output(options.json)) {
    fmt::print("{}", print(plans.step.front()));
    print_micro_batches(plans);
    if (recomputed) print_recomputed(*recomputed);
    print_resident(resident);
  }
  Json json = as_json(plans.step.front(), options.model, batch);
  json["micro_batches"] = plans.turns.size() + 1;
  if (recomputed) json["recompute"] = as_json(*recomputed);
  json["devices"] = Json::array();
  for (const Resident& each : resident) json["devices"].push_back(as_json(each));
  json["fits"] = std::ranges::all_of(resident, &Resident::fits);
  write_json(json, options.json);
}

}  // namespace

void add_plan(Program& program) {
  Command app = program.add_command("plan", "Prints the schedule of one training step.");
  auto options = std::make_shared<PlanOptions>();
  app.add_option("--model", options->model, "one of " + zoo_names()).capture_default_str();
  add_batch(app, options->batch);
  add_placement(app, options->placement);
  add_memory(app, options->memory);
  app.add_option("--fit", options->fit,
                 "proposes what of these makes the step fit into so many bytes (16GiB; auto: the "
                 "memory that there is), the fastest first");
  app.add_option("--optimizer", options->optimizer, "sgd, adam, … (what suits the model)");
  app.add_option("--json", options->json, "write the plan to this file (-: here)");
  app.callback([options] { run(*options); });
}

}  // namespace lockstep::cli
