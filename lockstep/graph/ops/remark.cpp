#include "lockstep/graph/ops/remark.h"

#include <algorithm>

namespace lockstep {
namespace {

constexpr const char* kRemark = "remark";

}  // namespace

Value with_remark(Value x, std::string sentence) {
  Attrs attrs{{"dtype", std::string(name_of(x.dtype()))}, {kRemark, std::move(sentence)}};
  return x.graph().add1(Op::Cast, {x}, std::move(attrs));
}

std::vector<std::string> remarks(const Graph& graph) {
  std::vector<std::string> found;
  for (const Node& node : graph.nodes()) {
    if (!node.attrs.has(kRemark)) continue;
    const std::string& sentence = node.attrs.text(kRemark);
    if (std::ranges::find(found, sentence) == found.end()) found.push_back(sentence);
  }
  return found;
}

}  // namespace lockstep
