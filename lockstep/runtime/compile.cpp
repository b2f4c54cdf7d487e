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
#include "lockstep/runtime/pass_list.h"
#include "lockstep/runtime/session.h"

namespace lockstep {

void Session::collect_remarks(const Graph& graph) {
  for (std::string& sentence : lockstep::remarks(graph)) {
    if (std::ranges::find(remarks_, sentence) == remarks_.end()) {
      remarks_.push_back(std::move(sentence));
    }
  }
}

void Session::distribute(std::span<CompileRequest> requests) {
  const auto run_all = [&] {
    for (CompileRequest& request : requests) {
      run_passes(request.graph,
                 distribute_passes(request.precision, {.rank = world_->rank(request.rank),
                                                       .ranks = world_->size(),
                                                       .sizes = world_->buckets(),
                                                       .cuts = &bucket_cuts_}));
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
            "train the same model",
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
  const bool decides = !laid_out_ && trains(requests.front().graph);
  ensure(!decides || std::ssize(requests) == local_size(), "{} of {} ranks lay out their variables",
         requests.size(), local_size());
  optimize_all(requests, decides ? LayoutOf() : layouts_of_variables(), [&](const Graph& first) {
    if (decides) {
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
      executors[i] = std::make_unique<Executor>(
          make_plan(std::move(requests[i].graph), kernels(local)), kernels(local),
          *states_[static_cast<std::size_t>(local)],
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
  const PhaseScope start(*phases_, Phase::Start);
  distribute(requests);
  const bool decides = !laid_out_ && trains(requests.front().graph);
  std::map<const Variable*, Layout> decided;
  optimize_all(requests, decides ? LayoutOf() : layouts_of_variables(), [&](const Graph& first) {
    for (const Node& node : first.nodes()) {
      if (node.op != Op::Variable) continue;
      decided[node.variable.get()] = first.info(node.outputs[0]).layout;
    }
    return [&decided](const Variable& variable) {
      const auto found = decided.find(&variable);
      return found != decided.end() ? std::optional(found->second) : std::nullopt;
    };
  });
  std::vector<Plan> plans(requests.size());
  world_->run([&](int local) {
    world_->device(local).make_current();
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (requests[i].rank != local) continue;
      plans[i] = make_plan(std::move(requests[i].graph), kernels(local));
    }
  });
  return plans;
}

bool trains(const Graph& graph) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(),
                     [](const Node& node) { return node.op == Op::Update; });
}

}  // namespace lockstep
