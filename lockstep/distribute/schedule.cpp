#include "lockstep/distribute/schedule.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/graph/op_def.h"
#include "lockstep/graph/ops/collective.h"

namespace lockstep {
namespace {

constexpr std::size_t kScheduleScalars = 3;  // inputs of an Update before its parameters

class Description {
 public:
  explicit Description(const Graph& graph) : graph_(graph) {
    for (const Node& node : graph.nodes()) {
      if (node.op == Op::Update) name_gradients(node);
      if (node.op == Op::Assign) name(node.inputs[1], graph.producer(node.inputs[0]).name);
      if (node.op == Op::AllGather) name_gathered(node);
    }
  }

  std::string text() const {
    std::map<std::pair<bool, std::int64_t>, std::string> lines;
    for (const Node& node : graph_.nodes()) {
      if (!is_collective(node)) continue;
      ensure(node.attrs.has("order"), "[schedule] {} {} has no number; run Bucket first",
             op_def(node.op).name, node.name);
      const std::int64_t order = node.attrs.integer("order");
      lines[{is_bucket(node), order}] =
          fmt::format("{} {}: {}\n", is_bucket(node) ? "gradients" : "compute", order, line(node));
    }
    std::string all;
    for (const auto& [order, text] : lines) all += text;
    return all;
  }

 private:
  // What a value is made of, whatever its layout and type.
  ValueId plain(ValueId id) const {
    for (;;) {
      const Node& node = graph_.producer(id);
      if (node.op != Op::Reorder && node.op != Op::Cast) return id;
      const auto place = std::ranges::find(node.outputs, id) - node.outputs.begin();
      id = node.inputs[static_cast<std::size_t>(place)];
    }
  }

  void name(ValueId id, const std::string& name) { names_.emplace(plain(id), name); }

  // Slices of variables, as they are or rounded.
  void name_gathered(const Node& gather) {
    for (std::size_t i = 0; i < gather.inputs.size(); ++i) {
      const Node* from = &graph_.producer(gather.inputs[i]);
      if (from->op == Op::Cast) from = &graph_.producer(from->inputs[0]);
      if (from->op == Op::Variable) name(gather.outputs[i], from->name);
    }
  }

  void name_gradients(const Node& update) {
    const auto count = static_cast<std::size_t>(update.attrs.integer("count"));
    for (std::size_t i = kScheduleScalars; i < kScheduleScalars + count; ++i) {
      const Node* parameter = &graph_.producer(update.inputs[i]);
      if (parameter->op == Op::OwnSlice) {
        std::size_t member = 0;
        while (parameter->outputs[member] != update.inputs[i]) ++member;
        parameter = &graph_.producer(plain(parameter->inputs[member]));
      }
      name(update.inputs[i + count], parameter->name);
    }
  }

  std::string line(const Node& node) const {
    // The side on which members are whole.
    const std::vector<ValueId>& whole = node.op == Op::ReduceScatter ? node.inputs : node.outputs;
    std::string members;
    std::int64_t elements = 0;
    for (std::size_t i = 0; i < whole.size(); ++i) {
      const ValueInfo& value = graph_.info(whole[i]);
      elements += value.layout.elements(value.type.shape);
      const auto known = names_.find(node.outputs[i]);
      const std::string layout = value.layout.row_major() ? "" : ":" + value.layout.str();
      members +=
          fmt::format("{}{} {}{}", i == 0 ? "" : ", ",
                      known == names_.end() ? node.name : known->second, value.type.shape, layout);
    }
    const std::string root =
        node.op == Op::Broadcast ? fmt::format(" from {}", node.attrs.integer("root")) : "";
    return fmt::format("{} {} {} {}{}: {}", op_def(node.op).name, node.attrs.text("group"),
                       name_of(graph_.type(whole[0]).dtype), elements, root, members);
  }

  const Graph& graph_;
  std::map<ValueId, std::string> names_;
};

}  // namespace

std::string describe_schedule(const Graph& graph) {
  return Description(graph).text();
}

std::optional<ScheduleDifference> first_difference(const std::string& first,
                                                   const std::string& second) {
  std::istringstream lines_of_first(first);
  std::istringstream lines_of_second(second);
  for (ScheduleDifference found{.line = 1, .first = "", .second = ""};; ++found.line) {
    found.first.clear();
    found.second.clear();
    const bool some = static_cast<bool>(std::getline(lines_of_first, found.first));
    const bool more = static_cast<bool>(std::getline(lines_of_second, found.second));
    if (!some && !more) return std::nullopt;
    if (some != more || found.first != found.second) return found;
  }
}

}  // namespace lockstep
