#include "lockstep/passes/accumulate.h"

#include <algorithm>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/collective.h"
#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/graph/ops/state.h"
#include "lockstep/graph/ops/update.h"

namespace lockstep {
namespace {

constexpr std::size_t kUpdateScalars = 3;  // inputs of an Update before its parameters
// Values are added to their accumulators in groups of about this many bytes: fewer launches, and
// little memory that waits for its group.
constexpr std::size_t kGroupBytes = 1 << 20;

bool can_be_added(const ValueType& type) {
  return type.dtype == DType::F32 || type.dtype == DType::F64;
}

constexpr std::string_view kPrefix = "accumulated/";

VariableRef make_accumulator(const std::string& name, const ValueType& type,
                             const Placement& placement) {
  return std::make_shared<const Variable>(Variable{.name = std::string(kPrefix) + name,
                                                   .dtype = type.dtype,
                                                   .shape = type.shape,
                                                   .trainable = false,
                                                   .placement = placement,
                                                   .initializer = {}});
}

void expect_type(const Variable& accumulator, const ValueType& type) {
  const ValueType own{accumulator.dtype, accumulator.shape};
  require(own == type,
          "[accumulate] {} holds {}, and a micro-batch of the same step has {}: all micro-batches "
          "must have the same gradients",
          accumulator.name, own.str(), type.str());
}

// Which values of a traced step are added up, and what follows from the lists that they are in.
class StepValues {
 public:
  StepValues(const Graph& graph, const Accumulation& options)
      : graph_(graph), accumulators_(*options.accumulators) {
    find_followers();
    find_parameters();
    find_lists();
    if (options.sum_outputs) find_outputs();
    find_assignments();
  }

  // Whether a value is computed from what the lists give.
  bool follows(ValueId id) const { return followers_.contains(id); }
  bool follows(const Node& node) const {
    return std::ranges::any_of(node.inputs, [&](ValueId id) { return follows(id); });
  }
  // A list whose values are added up.
  bool is_list(const Node& node) const { return is_bucket(node) && !follows(node); }
  // The accumulators of a list's values, of an output, and of what is assigned; null: none.
  const std::vector<VariableRef>& of_list(const Node& list) const { return lists_.at(&list); }
  VariableRef of_output(const std::string& name) const { return find(outputs_, name); }
  VariableRef of_assignment(const Node& node) const { return find(assignments_, &node); }
  // How many micro-batches there were; for the mean of what is assigned.
  VariableRef count() const {
    return accumulators_.of("micro-batches", 0, {DType::F32, {}}, Placement::replicated());
  }
  bool needs_count() const { return !assignments_.empty(); }

  // All accumulators of a value: it may be in several lists.
  std::vector<VariableRef> of(ValueId id) const {
    std::vector<VariableRef> all;
    const auto [begin, end] = by_value_.equal_range(id);
    for (auto each = begin; each != end; ++each) all.push_back(each->second);
    return all;
  }

 private:
  template <class Map, class Key>
  static VariableRef find(const Map& map, const Key& key) {
    const auto found = map.find(key);
    return found == map.end() ? nullptr : found->second;
  }

  void find_followers() {
    for (const Node& node : graph_.nodes()) {
      if (is_bucket(node) || follows(node)) {
        followers_.insert(node.outputs.begin(), node.outputs.end());
      }
    }
  }

  void find_parameters() {
    for (const Node& node : graph_.nodes()) {
      if (node.op != Op::Update) continue;
      const auto count = static_cast<std::size_t>(node.attrs.integer("count"));
      for (std::size_t i = kUpdateScalars; i < kUpdateScalars + count; ++i) {
        parameter_of_[node.inputs[i + count]] = graph_.producer(node.inputs[i]).variable;
      }
    }
  }

  void find_lists() {
    std::size_t others = 0;
    for (const Node& node : graph_.nodes()) {
      if (!is_list(node)) continue;
      std::vector<VariableRef>& own = lists_[&node];
      for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        const ValueType& type = graph_.type(node.inputs[i]);
        const VariableRef parameter = find(parameter_of_, node.outputs[i]);
        own.push_back(parameter != nullptr
                          ? accumulators_.of_gradient(parameter, type)
                          : accumulators_.of("value", others++, type, Placement::local()));
        by_value_.emplace(node.inputs[i], own.back());
      }
    }
    require(!lists_.empty(),
            "[accumulate] the step has no gradients to add up: it must end with the update of an "
            "optimizer, optimizer.apply(gradients(loss, variables))");
  }

  // Norms of gradients are not sums: those of the form Last are norms of what was added up. An
  // output that is in a list, too, is added up only once, so that a form Add serves steps that
  // differ only in such outputs.
  void find_outputs() {
    for (const auto& [name, id] : graph_.outputs()) {
      const Node& producer = graph_.producer(id);
      const bool norm = producer.op == Op::GlobalNorm && producer.attrs.has(kByBucket);
      if (follows(id) || norm || !can_be_added(graph_.type(id))) continue;
      const auto listed = by_value_.find(id);
      if (listed != by_value_.end()) {
        outputs_[name] = listed->second;
        continue;
      }
      outputs_[name] = accumulators_.of("output " + name, 0, graph_.type(id), Placement::local());
      by_value_.emplace(id, outputs_[name]);
    }
  }

  void find_assignments() {
    std::size_t number = 0;
    for (const Node& node : graph_.nodes()) {
      if (node.op != Op::Assign || follows(node)) continue;
      const Variable& variable = *graph_.producer(node.inputs[0]).variable;
      const ValueType& type = graph_.type(node.inputs[1]);
      if (!variable.placement.on(kDataAxis).is_replicated() || !can_be_added(type)) continue;
      const VariableRef accumulator =
          accumulators_.of("assigned", number++, type, Placement::replicated());
      assignments_[&node] = accumulator;
      by_value_.emplace(node.inputs[1], accumulator);
    }
  }

  const Graph& graph_;
  Accumulators& accumulators_;
  std::set<ValueId> followers_;
  std::map<ValueId, VariableRef> parameter_of_;  // by the all-reduced gradient
  std::map<const Node*, std::vector<VariableRef>> lists_;
  std::map<std::string, VariableRef> outputs_;
  std::map<const Node*, VariableRef> assignments_;
  std::multimap<ValueId, VariableRef> by_value_;
};

class AddWriter {
 public:
  AddWriter(const Graph& graph, const StepValues& values, bool outputs)
      : graph_(graph), values_(values), outputs_(outputs), rewriter_(graph) {}

  Graph run() {
    Graph& target = rewriter_.target();
    for (const Node& node : graph_.nodes()) {
      if (is_left_out(node)) continue;
      rewriter_.copy(node);
      for (ValueId id : node.outputs) {
        for (const VariableRef& accumulator : values_.of(id)) add(accumulator, rewriter_.map(id));
      }
    }
    if (values_.needs_count()) add(values_.count(), target.scalar(1.0));
    while (!groups_.empty()) write(groups_.begin()->first);
    for (const auto& [name, id] : graph_.outputs()) {
      if (!outputs_) break;
      require(!values_.follows(id),
              "[accumulate] the result {} depends on gradients that are reduced over all "
              "micro-batches, which only the last one does: return it from another function",
              name);
      target.output(name, rewriter_.map(id));
    }
    return std::move(target);
  }

 private:
  struct Group {
    std::vector<Value> accumulators;
    std::vector<Value> values;
    std::size_t bytes = 0;
  };

  bool is_left_out(const Node& node) const {
    if (values_.follows(node) || is_bucket(node)) return true;
    if (node.op != Op::Assign) return false;
    return graph_.producer(node.inputs[0]).variable->placement.on(kDataAxis).is_replicated();
  }

  void add(const VariableRef& accumulator, Value value) {
    Group& group = groups_[value.dtype()];
    group.accumulators.push_back(rewriter_.target().variable(accumulator));
    group.values.push_back(value);
    group.bytes += rewriter_.target().bytes(value.id());
    if (group.bytes >= kGroupBytes) write(value.dtype());
  }

  void write(DType dtype) {
    Group group = std::move(groups_.extract(dtype).mapped());
    Graph& target = rewriter_.target();
    const Graph::NameScope scope(target, "accumulate");
    if (!accumulated_.defined()) {
      accumulated_ = target.input(kAccumulatedInput, {DType::F32, {}});
      one_ = target.scalar(1.0);
      step_ = target.scalar(0, DType::I64);
    }
    update({.rate = accumulated_,
            .scale = one_,
            .step = step_,
            .parameters = std::move(group.accumulators),
            .gradients = std::move(group.values),
            .slots = {}},
           kAccumulateRule, {});
  }

  const Graph& graph_;
  const StepValues& values_;
  const bool outputs_;
  Rewriter rewriter_;
  std::map<DType, Group> groups_;
  Value accumulated_, one_, step_;
};

class LastWriter {
 public:
  LastWriter(const Graph& graph, const StepValues& values)
      : graph_(graph), values_(values), rewriter_(graph) {}

  Graph run() {
    Graph& target = rewriter_.target();
    for (const Node& node : graph_.nodes()) {
      if (values_.is_list(node)) {
        rewriter_.copy_as(node, totals(node.inputs, values_.of_list(node)), node.attrs);
      } else if (node.op == Op::GlobalNorm && node.attrs.has(kByBucket) && !values_.follows(node)) {
        rewriter_.copy_as(node, of_gradients(node), node.attrs);
      } else if (const VariableRef mean = values_.of_assignment(node); mean != nullptr) {
        const Graph::NameScope scope(target, node.name);
        const Value inputs[] = {rewriter_.map(node.inputs[0]),
                                div(total(node.inputs[1], mean), count(mean->dtype))};
        rewriter_.copy_as(node, inputs, node.attrs);
      } else {
        rewriter_.copy(node);
      }
      for (ValueId id : node.outputs) write_totals(id);
    }
    for (const auto& [name, id] : graph_.outputs()) {
      const VariableRef sum = values_.of_output(name);
      target.output(name, sum != nullptr ? total(id, sum) : rewriter_.map(id));
    }
    return std::move(target);
  }

 private:
  void write_totals(ValueId id) {
    for (const VariableRef& accumulator : values_.of(id)) {
      Graph& target = rewriter_.target();
      const Graph::NameScope scope(target, "accumulate");
      totals_[accumulator] = target.variable(accumulator) + rewriter_.map(id);
    }
  }

  Value total(ValueId id, const VariableRef& accumulator) const {
    const auto found = totals_.find(accumulator);
    ensure(found != totals_.end(), "[accumulate] value {} was not added up", id);
    return found->second;
  }

  std::vector<Value> totals(std::span<const ValueId> ids, std::span<const VariableRef> of) const {
    std::vector<Value> values;
    for (std::size_t i = 0; i < ids.size(); ++i) values.push_back(total(ids[i], of[i]));
    return values;
  }

  // The inputs of a norm, with gradients as they were added up.
  std::vector<Value> of_gradients(const Node& norm) const {
    std::vector<Value> values;
    for (ValueId id : norm.inputs) {
      const std::vector<VariableRef> accumulators = values_.of(id);
      values.push_back(accumulators.empty() ? rewriter_.map(id) : total(id, accumulators.front()));
    }
    return values;
  }

  Value count(DType dtype) {
    Graph& target = rewriter_.target();
    if (!count_.defined()) count_ = target.variable(values_.count()) + target.scalar(1.0);
    return dtype == DType::F32 ? count_ : cast(count_, dtype);
  }

  const Graph& graph_;
  const StepValues& values_;
  Rewriter rewriter_;
  std::map<VariableRef, Value> totals_;
  Value count_;
};

}  // namespace

VariableRef Accumulators::of_gradient(const VariableRef& parameter, const ValueType& type) {
  VariableRef& accumulator = of_parameter_[parameter];
  if (accumulator == nullptr) {
    accumulator = make_accumulator(parameter->name, type, Placement::local());
  }
  expect_type(*accumulator, type);
  return accumulator;
}

VariableRef Accumulators::of(const std::string& kind, std::size_t n, const ValueType& type,
                             const Placement& placement) {
  VariableRef& accumulator = others_[{kind, n}];
  if (accumulator == nullptr) {
    accumulator = make_accumulator(fmt::format("{} {}", kind, n), type, placement);
  }
  expect_type(*accumulator, type);
  return accumulator;
}

bool Accumulators::is_one(const Variable& variable) {
  return variable.name.starts_with(kPrefix);
}

void AccumulatePass::run(Graph& graph) {
  if (options_.form == MicroForm::Whole) return;
  ensure(options_.accumulators != nullptr, "[accumulate] there are no accumulators");
  const StepValues values(graph, options_);
  graph = options_.form == MicroForm::Add ? AddWriter(graph, values, !options_.sum_outputs).run()
                                          : LastWriter(graph, values).run();
}

}  // namespace lockstep
