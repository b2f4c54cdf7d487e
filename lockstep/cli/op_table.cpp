#include "lockstep/cli/op_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "lockstep/cli/format.h"
#include "lockstep/exec/runner.h"
#include "lockstep/graph/op_def.h"
#include "lockstep/graph/ops/collective.h"

namespace lockstep::cli {
namespace {

void finish(std::vector<OpRow>& rows, const std::vector<double>& flops) {
  double total = 0;
  for (const OpRow& row : rows) total += row.ms;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].share = total > 0 ? rows[i].ms / total : 0;
    rows[i].gflops = rows[i].ms > 0 ? flops[i] * 1e-6 / rows[i].ms : 0;
  }
}

}  // namespace

std::vector<OpRow> node_times(const Plan& plan, const KernelLibrary& library, const Track& track) {
  // Instructions of the same name run in plan order, so spans are matched from the last one back.
  std::map<std::string_view, std::vector<std::size_t>> instructions_of;
  std::vector<std::string> names;
  for (const Instruction& instruction : plan.instructions)
    names.push_back(span_name(plan.graph.node(instruction.node)));
  for (std::size_t i = 0; i < names.size(); ++i) instructions_of[names[i]].push_back(i);
  std::map<std::string_view, std::size_t> seen;
  std::vector<std::vector<double>> times(names.size());
  const std::vector<Span> spans = track.spans();
  for (auto span = spans.rbegin(); span != spans.rend(); ++span) {
    const auto found = instructions_of.find(span->name);
    if (span->kind != SpanKind::Compute || found == instructions_of.end()) continue;
    const std::size_t count = found->second.size();
    const std::size_t from_last = seen[found->first]++ % count;
    times[found->second[count - 1 - from_last]].push_back(
        static_cast<double>(span->end_ns - span->begin_ns) * 1e-6);
  }
  std::vector<double> ms;
  for (const std::vector<double>& each : times) ms.push_back(each.empty() ? 0 : median(each));
  return node_times(plan, library, ms);
}

std::vector<OpRow> node_times(const Plan& plan, const KernelLibrary& library,
                              const std::vector<double>& ms) {
  std::vector<OpRow> rows;
  std::vector<double> flops;
  for (std::size_t i = 0; i < ms.size(); ++i) {
    const Instruction& instruction = plan.instructions[i];
    const Node& node = plan.graph.node(instruction.node);
    if (is_collective(node)) continue;  // counted as communication, not as a node's time
    rows.push_back({.op = std::string(op_def(node.op).name),
                    .kernel = std::string(library.find({plan.graph, node, library.context()}).name),
                    .name = node.name,
                    .calls = 1,
                    .ms = ms[i]});
    flops.push_back(instruction.cost.flops);
  }
  finish(rows, flops);
  return rows;
}

std::vector<OpRow> op_times(const std::vector<OpRow>& nodes) {
  std::map<std::pair<std::string, std::string>, std::pair<OpRow, double>> sums;
  for (const OpRow& node : nodes) {
    auto& [row, flops] = sums[{node.op, node.kernel}];
    row.op = node.op;
    row.kernel = node.kernel;
    row.calls += node.calls;
    row.ms += node.ms;
    flops += node.gflops * node.ms * 1e6;
  }
  std::vector<OpRow> rows;
  std::vector<double> flops;
  for (auto& [key, sum] : sums) {
    rows.push_back(std::move(sum.first));
    flops.push_back(sum.second);
  }
  finish(rows, flops);
  std::sort(rows.begin(), rows.end(), [](const OpRow& a, const OpRow& b) { return a.ms > b.ms; });
  return rows;
}

std::string print(const std::vector<OpRow>& rows, std::size_t most) {
  std::string text = fmt::format("{:<24} {:<26} {:>6} {:>10} {:>7} {:>9}  {}\n", "op", "kernel",
                                 "calls", "ms/step", "share", "GFLOP/s", "name");
  for (std::size_t i = 0; i < std::min(most, rows.size()); ++i) {
    const OpRow& row = rows[i];
    text += fmt::format("{:<24} {:<26} {:>6} {:>10.4f} {:>6.1f}% {:>9}  {}\n", row.op, row.kernel,
                        row.calls, row.ms, row.share * 100,
                        row.gflops > 0 ? fmt::format("{:.1f}", row.gflops) : "-", row.name);
  }
  return text;
}

Json ops_json(const std::vector<OpRow>& rows) {
  Json json = Json::array();
  for (const OpRow& row : rows) {
    json.push_back({{"op", row.op},
                    {"kernel", row.kernel},
                    {"name", row.name},
                    {"calls", row.calls},
                    {"ms", row.ms},
                    {"share", row.share},
                    {"gflops", row.gflops}});
  }
  return json;
}

}  // namespace lockstep::cli
