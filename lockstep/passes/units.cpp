#include "lockstep/passes/units.h"

#include <set>
#include <utility>

namespace lockstep {
namespace {

class Writing {
 public:
  Writing(const Graph& graph, const Units& units)
      : graph_(graph), units_(units), written_(graph.nodes().size(), false), rewriter_(graph) {}

  Graph run() {
    for (NodeId n = 0; n < std::ssize(graph_.nodes()); ++n) write(n);
    return rewriter_.finish();
  }

 private:
  // Writes a node, or the unit that it is part of, behind the producers of what it reads.
  void write(NodeId n) {
    if (written_[static_cast<std::size_t>(n)]) return;
    written_[static_cast<std::size_t>(n)] = true;
    const Node& node = graph_.node(n);
    const Unit* const unit = units_.of(n);
    for (ValueId id : unit != nullptr ? unit->inputs : node.inputs) {
      write(graph_.info(id).producer);
    }
    if (unit == nullptr) return rewriter_.copy(node);
    if (done_.insert(unit).second) write(*unit);
  }

  void write(const Unit& unit) {
    Graph& target = rewriter_.target();
    const Graph::NameScope scope(target, unit.name);
    std::vector<Value> inputs = rewriter_.map(unit.inputs);
    if (unit.mask.by >= 0) {
      inputs[0] = target.add1(Op::ActivationGrad, {inputs[0], rewriter_.map(unit.mask.by)},
                              unit.mask.attrs);
    }
    std::vector<Value> outputs = target.add(unit.op, inputs, unit.attrs);
    if (unit.clamp) outputs[0] = target.add1(Op::Activation, {outputs[0]}, *unit.clamp);
    for (std::size_t i = 0; i < unit.outputs.size(); ++i) {
      rewriter_.set(unit.outputs[i], outputs[i]);
    }
  }

  const Graph& graph_;
  const Units& units_;
  std::vector<bool> written_;
  std::set<const Unit*> done_;
  Rewriter rewriter_;
};

}  // namespace

Units::Units(const Graph& graph) : graph_(graph), units_(graph.nodes().size()) {}

void Units::replace(std::initializer_list<NodeId> nodes, Unit unit) {
  const auto shared = std::make_shared<const Unit>(std::move(unit));
  for (NodeId n : nodes) {
    if (n >= 0) units_[static_cast<std::size_t>(n)] = shared;
  }
}

Graph Units::write() const {
  return Writing(graph_, *this).run();
}

}  // namespace lockstep
