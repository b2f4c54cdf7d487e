// lockstep plan: the schedule of one training step, before anything runs.
#include <fmt/core.h>

#include "lockstep/cli/command.h"
#include "lockstep/cli/step_run.h"
#include "lockstep/graph/op_def.h"

namespace lockstep::cli {
namespace {

struct PlanOptions {
  std::string model = "mlp";
  BatchFlags batch;
  Placement placement;
  std::string optimizer;
  std::string json;
};

Json as_json(const Plan& plan, const std::string& model, std::int64_t batch) {
  Json json;
  json["model"] = model;
  json["batch_per_replica"] = batch;
  json["steps"] = Json::array();
  for (const PlanStep& step : plan.steps) {
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
  json["variable_bytes"] = plan.variable_bytes;
  json["constant_bytes"] = plan.constant_bytes;
  json["live_bytes"] = plan.live_bytes;
  json["peak_bytes"] = plan.peak_bytes();
  return json;
}

void run(const PlanOptions& options) {
  check_target("--json", options.json);
  const int replicas = one_count(options.placement);
  const Strategy strategy = make_strategy(options.placement, replicas, replicas);
  const std::int64_t batch =
      batch_per_replica(options.batch, replicas, zoo_entry(options.model).batch);
  StepRun step(strategy, {.model = options.model,
                          .batch = batch,
                          .optimizer = options.optimizer,
                          .precision = options.placement.precision});
  if (!is_standard_output(options.json)) fmt::print("{}", print(step.plan()));
  write_json(as_json(step.plan(), options.model, batch), options.json);
}

}  // namespace

void add_plan(Program& program) {
  Command app = program.add_command("plan", "Prints the schedule of one training step.");
  auto options = std::make_shared<PlanOptions>();
  app.add_option("--model", options->model, "one of " + zoo_names()).capture_default_str();
  add_batch(app, options->batch);
  add_placement(app, options->placement);
  app.add_option("--optimizer", options->optimizer, "sgd, adam, … (what suits the model)");
  app.add_option("--json", options->json, "write the plan to this file (-: here)");
  app.callback([options] { run(*options); });
}

}  // namespace lockstep::cli
