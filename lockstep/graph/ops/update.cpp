#include "lockstep/graph/ops/update.h"

#include <algorithm>

#include "lockstep/graph/ops/placement_rules.h"
#include "lockstep/graph/ops/rules.h"

namespace lockstep {
namespace {

// Inputs before the first parameter: rate, scale, step.
constexpr std::size_t kScalars = 3;
constexpr const char* kNormOf = "norm_of";

bool set_and_positive(const Attrs& attrs, std::string_view name) {
  return attrs.has(name) && attrs.real(name) > 0;
}

// How many slots a rule keeps per parameter.
std::int64_t slots_of(const std::string& rule, const Attrs& attrs) {
  if (rule == "sgd") return set_and_positive(attrs, "momentum") ? 1 : 0;
  if (rule == "rmsprop") {
    const bool centered = attrs.has("centered") && attrs.flag("centered");
    return 1 + (set_and_positive(attrs, "momentum") ? 1 : 0) + (centered ? 1 : 0);
  }
  if (rule == "adam" || rule == "adamw" || rule == "lamb") return 2;
  if (rule == "adagrad" || rule == "lars") return 1;
  if (rule == kAccumulateRule) return 0;
  fail<UsageError>(
      "there is no update rule called {}; there are: sgd, adam, adamw, rmsprop, adagrad, lars, "
      "lamb",
      rule);
}

// Whether parameters are slices that come out as values, instead of variables changed in place.
bool updates_slices(const Attrs& attrs) {
  return attrs.has(kOfSlices);
}

// The rules for what an update reads.
void expect_update_inputs(const OpCall& call) {
  const auto count = static_cast<std::size_t>(call.attrs.integer("count"));
  const auto slots = static_cast<std::size_t>(call.attrs.integer("slots"));
  const std::int64_t expected = slots_of(call.attrs.text("rule"), call.attrs);
  require(static_cast<std::int64_t>(slots) == expected, "the rule {} keeps {} slot(s), not {}",
          call.attrs.text("rule"), expected, slots);
  require(count > 0, "there are no parameters to update");
  ensure(call.inputs.size() == kScalars + count * (2 + slots),
         "update of {} parameters with {} slots has {} inputs", count, slots, call.inputs.size());
  require_type(call, 0, {DType::F32, {}}, "the rate");
  require_type(call, 1, {DType::F32, {}}, "the scale");
  require_type(call, 2, {DType::I64, {}}, "the number of the step");
  for (std::size_t i = 0; i < count; ++i) {
    const ValueType& parameter = call.inputs[kScalars + i];
    require(is_floating(parameter.dtype) && parameter.dtype == call.dtype(kScalars),
            "parameter {} is {}; all must be of one floating-point type, here {}", i,
            parameter.str(), name_of(call.dtype(kScalars)));
    for (std::size_t list = 1; list < 2 + slots; ++list) {
      const ValueType& other = call.inputs[kScalars + list * count + i];
      require(other == parameter, "parameter {} is {}, but its {} is {}", i, parameter.str(),
              list == 1 ? "gradient" : "slot", other.str());
    }
  }
}

std::vector<ValueType> infer_update(const OpCall& call) {
  expect_update_inputs(call);
  if (!updates_slices(call.attrs)) return {};
  const auto count = static_cast<std::size_t>(call.attrs.integer("count"));
  const auto parameters = call.inputs.subspan(kScalars, count);
  return {parameters.begin(), parameters.end()};
}

// Of slices, which are values: they are updated where they lie.
std::vector<std::pair<int, int>> in_place_update(const OpCall& call) {
  std::vector<std::pair<int, int>> pairs;
  if (!updates_slices(call.attrs)) return pairs;
  for (int i = 0; i < static_cast<int>(call.attrs.integer("count")); ++i) {
    pairs.emplace_back(static_cast<int>(kScalars) + i, i);
  }
  return pairs;
}

// An accumulator that each rank has its own values of takes whatever the rank has.
std::vector<Placement> place_accumulation(const PlaceCall& call, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const Placement& accumulator = call.inputs[kScalars + i];
    const Placement& value = call.inputs[kScalars + count + i];
    require(accumulator.is_local() || accumulator == value,
            "{} is {} on axis {} and cannot take what is {}",
            call.graph.producer(call.node.inputs[kScalars + i]).name, accumulator.str(), call.axis,
            value.str());
  }
  return {};
}

// Parameters and slots of all ranks change alike, by the same gradients; or every rank updates its
// own slices. Slots may be slices where nothing else is: the pass Bucket then writes the update of
// slices.
std::vector<Placement> place_update(const PlaceCall& call) {
  const auto count = static_cast<std::size_t>(call.attrs().integer("count"));
  if (is_accumulation(call.node)) return place_accumulation(call, count);
  const bool slices = updates_slices(call.attrs()) || call.inputs[kScalars].is_flat();
  const Placement wanted = slices ? Placement::sharded_flat() : Placement();
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    const Placement& placement = call.inputs[i];
    if (i < kScalars) {
      constexpr const char* kNames[] = {"rate", "scale of the gradients", "number of the step"};
      require(placement.is_replicated(),
              "the {} is {} on axis {}: it must be the same on all ranks; add it up first "
              "(all_reduce)",
              kNames[i], placement.str(), call.axis);
      continue;
    }
    const std::size_t list = (i - kScalars) / count;
    if (placement == wanted || (list > 1 && placement.is_flat())) continue;
    const std::string& parameter =
        call.graph.producer(call.node.inputs[kScalars + (i - kScalars) % count]).name;
    fail<UsageError>(
        "the {} of {} is {} on axis {}, not {}: {}",
        list == 0   ? "value"
        : list == 1 ? "gradient"
                    : "slot",
        parameter, placement.str(), call.axis, wanted.str(),
        list == 1
            ? "add it up over the ranks first, as Optimizer::apply does (all_reduce_gradients)"
            : "parameters and slots must lie on the ranks as the update reads them");
  }
  return call.all(wanted);
}

// Reads everything, writes parameters and slots; about a dozen operations per element.
Cost cost_update(const OpCall& call, std::span<const ValueType> outputs) {
  const auto count = static_cast<std::size_t>(call.attrs.integer("count"));
  const auto slots = static_cast<double>(call.attrs.integer("slots"));
  double elements = 0;
  for (std::size_t i = 0; i < count; ++i) {
    elements += static_cast<double>(call.shape(kScalars + i).elements());
  }
  const auto size = static_cast<double>(size_of(call.dtype(kScalars)));
  return {12 * elements, bytes_moved(call, outputs) + elements * size * (1 + slots)};
}

std::vector<ValueType> infer_update_norms(const OpCall& call) {
  expect_update_inputs(call);
  const std::string& rule = call.attrs.text("rule");
  const bool trust = update_norm_of(call.attrs) == UpdateNorm::Trust;
  require(!trust || rule == "lars" || rule == "lamb", "the rule {} has no trust ratio", rule);
  const auto count = static_cast<std::size_t>(call.attrs.integer("count"));
  return std::vector<ValueType>(trust ? 2 * count : count, {DType::F32, {}});
}

// A rank that has slices gets the norms of those.
std::vector<Placement> place_update_norms(const PlaceCall& call) {
  const bool whole = std::ranges::all_of(
      call.inputs, [](const Placement& placement) { return placement.is_replicated(); });
  return whole ? call.all(Placement::replicated()) : place_own(call);
}

std::vector<ValueType> infer_global_norm(const OpCall& call) {
  require(!call.inputs.empty(), "there is nothing to take the norm of");
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    require_floating(call, i, "every value");
    require(call.dtype(i) == call.dtype(0), "value {} is {}; all must be {}", i,
            call.inputs[i].str(), name_of(call.dtype(0)));
  }
  return {{DType::F32, {}}};
}

Cost cost_global_norm(const OpCall& call, std::span<const ValueType> outputs) {
  double elements = 0;
  for (const ValueType& type : call.inputs) {
    elements += static_cast<double>(type.shape.elements());
  }
  return {2 * elements, bytes_moved(call, outputs)};
}

// Reads everything, writes next to nothing.
Cost cost_update_norms(const OpCall& call, std::span<const ValueType> outputs) {
  const auto count = static_cast<std::size_t>(call.attrs.integer("count"));
  double elements = 0;
  for (std::size_t i = 0; i < count; ++i) {
    elements += static_cast<double>(call.shape(kScalars + i).elements());
  }
  return {8 * elements, bytes_moved(call, outputs)};
}

// Of slices of a bucket every rank has the norm of its own.
std::vector<Placement> place_global_norm(const PlaceCall& call) {
  const auto is_flat = [](const Placement& placement) { return placement.is_flat(); };
  if (std::ranges::any_of(call.inputs, is_flat)) return place_own(call);
  const auto settled = place_settled(call);
  return settled ? *settled : place_own(call);
}

// The inputs of a node, and what its attributes say of them.
std::vector<Value> update_operands(const UpdateInputs& inputs, const std::string& rule,
                                   Attrs& attrs) {
  const std::size_t count = inputs.parameters.size();
  require(count > 0, "[update] {}: there are no parameters to update", rule);
  require(inputs.gradients.size() == count, "[update] {}: {} parameters, but {} gradients", rule,
          count, inputs.gradients.size());
  std::vector<Value> all{inputs.rate, inputs.scale, inputs.step};
  const auto append = [&](const std::vector<Value>& list) {
    all.insert(all.end(), list.begin(), list.end());
  };
  append(inputs.parameters);
  append(inputs.gradients);
  for (const std::vector<Value>& slot : inputs.slots) {
    require(slot.size() == count, "[update] {}: {} parameters, but {} in a slot", rule, count,
            slot.size());
    append(slot);
  }
  attrs.set("rule", rule);
  attrs.set("count", static_cast<std::int64_t>(count));
  attrs.set("slots", static_cast<std::int64_t>(inputs.slots.size()));
  return all;
}

}  // namespace

std::span<const ValueId> staged_slots(const Node& node) {
  if (node.op != Op::Update || !node.attrs.has(kStaged)) return {};
  const auto count = static_cast<std::size_t>(node.attrs.integer("count"));
  return std::span(node.inputs).subspan(kScalars + 2 * count);
}

void update(const UpdateInputs& inputs, const std::string& rule, Attrs attrs) {
  const std::vector<Value> all = update_operands(inputs, rule, attrs);
  all.back().graph().add(Op::Update, all, std::move(attrs));
}

std::vector<Value> update_norms(const UpdateInputs& inputs, const std::string& rule, Attrs attrs,
                                UpdateNorm of) {
  const std::vector<Value> all = update_operands(inputs, rule, attrs);
  attrs.set(kNormOf, of == UpdateNorm::Trust ? "trust" : "gradients");
  return all.back().graph().add(Op::UpdateNorms, all, std::move(attrs));
}

UpdateNorm update_norm_of(const Attrs& attrs) {
  return attrs.text(kNormOf) == "trust" ? UpdateNorm::Trust : UpdateNorm::Gradients;
}

bool is_accumulation(const Node& node) {
  return node.op == Op::Update && node.attrs.text("rule") == kAccumulateRule;
}

Value global_norm(std::span<const Value> values) {
  require(!values.empty(), "[global_norm] there is nothing to take the norm of");
  return values[0].graph().add(Op::GlobalNorm, values).at(0);
}

Value gradient_norm(std::span<const Value> gradients) {
  require(!gradients.empty(), "[gradient_norm] there are no gradients to take the norm of");
  return gradients[0].graph().add(Op::GlobalNorm, gradients, {{kByBucket, true}}).at(0);
}

std::vector<OpDef> update_ops() {
  return {{.op = Op::Update,
           .name = "update",
           .infer = infer_update,
           .cost = cost_update,
           .find_in_place = in_place_update,
           .effect = true,
           .place = place_update},
          {.op = Op::UpdateNorms,
           .name = "update_norms",
           .infer = infer_update_norms,
           .cost = cost_update_norms,
           .place = place_update_norms},
          {.op = Op::GlobalNorm,
           .name = "global_norm",
           .infer = infer_global_norm,
           .cost = cost_global_norm,
           .place = place_global_norm}};
}

}  // namespace lockstep
