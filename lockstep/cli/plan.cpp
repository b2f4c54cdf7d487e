// lockstep plan: the schedule of one training step, and what it would need of each device's memory.
// Nothing runs and nothing is allocated, so that what would not fit can be planned.
#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "lockstep/cli/command.h"
#include "lockstep/cli/format.h"
#include "lockstep/cli/step_run.h"
#include "lockstep/device/cpu/memory.h"
#include "lockstep/device/cuda/cuda_device.h"
#include "lockstep/graph/op_def.h"
#include "lockstep/train/strategy_impl.h"

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
  return json;
}

// What a replica would have on its device, and whether all that lies in the same memory fits: CPU
// devices share the machine's, logical devices of a GPU share the GPU's.
struct Resident {
  std::string device;
  PlanBytes bytes;
  std::string memory;  // "the machine", "cuda:0"
  std::size_t memory_bytes = 0;
  bool fits = true;
};

std::vector<Resident> residents(const World& world, const std::vector<Plan>& plans) {
  std::vector<Resident> all;
  std::map<std::string, std::size_t> needed;
  for (int r = 0; r < world.local_size(); ++r) {
    const Device& device = world.device(r);
    Resident resident{.device = device.name(),
                      .bytes = bytes_on(device, plans[static_cast<std::size_t>(r)]),
                      .memory = "the machine",
                      .memory_bytes = 0};
    if (device.kind() == DeviceKind::Cuda) {
      const Gpu gpu = gpu_of(device);
      resident.memory = fmt::format("cuda:{}", gpu.index);
      resident.memory_bytes = gpu.memory_bytes;
    } else {
      resident.memory_bytes = machine_memory();
    }
    needed[resident.memory] += resident.bytes.total();
    all.push_back(std::move(resident));
  }
  for (Resident& each : all) each.fits = needed[each.memory] <= each.memory_bytes;
  return all;
}

Json as_json(const Resident& resident) {
  return {{"name", resident.device},
          {"variable_bytes", resident.bytes.variables},
          {"arena_bytes", resident.bytes.arena},
          {"input_output_bytes", resident.bytes.input_output},
          {"constant_bytes", resident.bytes.constants},
          {"resident_bytes", resident.bytes.total()},
          {"memory_bytes", resident.memory_bytes},
          {"fits", resident.fits}};
}

void print_resident(const std::vector<Resident>& all) {
  const auto text = [](std::size_t bytes) { return bytes_text(static_cast<double>(bytes)); };
  std::map<std::string, std::size_t> needed;
  for (const Resident& each : all) {
    fmt::print("{}: {} resident: variables {}, arena {}, inputs and outputs {}, constants {}\n",
               each.device, text(each.bytes.total()), text(each.bytes.variables),
               text(each.bytes.arena), text(each.bytes.input_output), text(each.bytes.constants));
    needed[each.memory] += each.bytes.total();
  }
  for (const Resident& each : all) {
    if (needed[each.memory] == 0) continue;  // told already
    fmt::print("{} of {}, the memory of {}: {}\n", text(needed[each.memory]),
               text(each.memory_bytes), each.memory,
               each.fits ? "fits" : "does not fit; use a smaller batch, or 16-bit precision");
    needed[each.memory] = 0;
  }
}

void run(const PlanOptions& options) {
  check_target("--json", options.json);
  const int replicas = one_count(options.placement);
  const Strategy strategy = make_strategy(options.placement, replicas, replicas);
  const std::int64_t batch =
      batch_per_replica(options.batch, replicas, zoo_entry(options.model).batch);
  const std::vector<Plan> plans = plan_step(strategy, {.model = options.model,
                                                       .batch = batch,
                                                       .optimizer = options.optimizer,
                                                       .precision = options.placement.precision});
  const std::vector<Resident> resident = residents(*impl_of(strategy).world, plans);
  if (!is_standard_output(options.json)) {
    fmt::print("{}", print(plans.front()));
    print_resident(resident);
  }
  Json json = as_json(plans.front(), options.model, batch);
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
  app.add_option("--optimizer", options->optimizer, "sgd, adam, … (what suits the model)");
  app.add_option("--json", options->json, "write the plan to this file (-: here)");
  app.callback([options] { run(*options); });
}

}  // namespace lockstep::cli
