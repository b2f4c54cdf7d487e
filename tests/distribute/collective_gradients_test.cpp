// The gradient of every collective, in both directions, against finite differences of the total
// loss over ranks.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "lockstep/autodiff/gradients.h"
#include "lockstep/distribute/bucket.h"
#include "lockstep/distribute/place.h"
#include "lockstep/graph/ops/ops.h"
#include "ranks.h"

namespace lockstep {
namespace {

constexpr int kRanks = 3;
constexpr After kOwn = After::OwnComputation;
constexpr After kReplicated = After::ReplicatedComputation;

// The loss of each rank: a scalar, from x and a factor that differs per rank. If all ranks continue
// with the same computation, the total loss is that of any rank, else their sum.
struct Case {
  const char* name;
  bool same_x;  // on all ranks: a change of x is then one on all
  bool counts_once;
  std::int64_t (*elements)(int rank);
  Value (*loss)(Value x, Value factor, RankInGroup here);
};

constexpr std::int64_t kElements = 7;
std::int64_t all_elements(int) {
  return kElements;
}
std::int64_t slice_elements(int rank) {
  return static_cast<std::int64_t>(slice_of(kElements, sizeof(double), rank, kRanks).size());
}

Value bowl(Value y) {
  return reduce_sum(square(y) + y * 0.5);
}

const Case kCases[] = {
    {"AllReduceBeforeOwnComputation", false, false, all_elements,
     [](Value x, Value factor, RankInGroup) {
       return bowl(all_reduce(x, {.after = kOwn})) * factor;
     }},
    {"AllReduceBeforeReplicatedComputation", false, true, all_elements,
     [](Value x, Value, RankInGroup) { return bowl(all_reduce(x, {.after = kReplicated})); }},
    {"ReplicatedBeforeOwnComputation", true, false, all_elements,
     [](Value x, Value factor, RankInGroup) { return bowl(for_each_rank(x)) * factor; }},
    {"AllGatherBeforeOwnComputation", false, false, slice_elements,
     [](Value x, Value factor, RankInGroup here) {
       const Shape whole[] = {{kElements}};
       return bowl(all_gather({&x, 1}, whole, here, {.after = kOwn})[0]) * factor;
     }},
    {"AllGatherBeforeReplicatedComputation", false, true, slice_elements,
     [](Value x, Value, RankInGroup here) {
       const Shape whole[] = {{kElements}};
       return bowl(all_gather({&x, 1}, whole, here, {.after = kReplicated})[0]);
     }},
    {"ReduceScatter", false, false, all_elements,
     [](Value x, Value factor, RankInGroup here) {
       return bowl(reduce_scatter({&x, 1}, here)[0]) * factor;
     }},
    {"OwnSlice", true, false, all_elements,
     [](Value x, Value factor, RankInGroup here) {
       return bowl(own_slice({&x, 1}, here)[0]) * factor;
     }},
    {"BroadcastBeforeOwnComputation", false, false, all_elements,
     [](Value x, Value factor, RankInGroup) {
       return bowl(broadcast(x, 1, {.after = kOwn})) * factor;
     }},
    {"BroadcastBeforeReplicatedComputation", false, true, all_elements,
     [](Value x, Value, RankInGroup) { return bowl(broadcast(x, 1, {.after = kReplicated})); }},
    // Both directions in one chain: a replicated computation between two that differ per rank.
    {"APartialSumMadeReplicatedAndUsedByEachRank", false, false, all_elements,
     [](Value x, Value factor, RankInGroup) {
       const Value sum = all_reduce(square(x), {.after = kReplicated});
       return bowl(for_each_rank(square(sum))) * factor;
     }},
};

class CollectiveGradient : public testing::TestWithParam<Case> {};

TEST_P(CollectiveGradient, IsThatOfTheTotalLoss) {
  const Case& c = GetParam();
  Ranks ranks(kRanks, [&](int r) {
    Graph graph;
    const Value x = graph.input("x", {DType::F64, {c.elements(r)}});
    const Value factor = graph.input("factor", {DType::F64, {}});
    const Value loss = c.loss(x, factor, {.rank = r, .size = kRanks});
    graph.output("loss", loss);
    graph.output("dx", gradients(loss, {&x, 1})[0]);
    BucketPass({.rank = r, .ranks = kRanks}).run(graph);  // numbers the collectives
    return graph;
  });
  std::vector<std::vector<double>> xs;
  for (int r = 0; r < kRanks; ++r) {
    std::vector<double>& x = xs.emplace_back();
    for (std::int64_t i = 0; i < c.elements(r); ++i) {
      x.push_back(0.3 * std::sin(static_cast<double>(i + (c.same_x ? 0 : 5 * r)) + 1.0));
    }
  }
  const auto total = [&] {
    for (int r = 0; r < kRanks; ++r) {
      Executor& executor = ranks.executor(r);
      std::ranges::copy(xs[static_cast<std::size_t>(r)],
                        executor.input("x").values<double>().begin());
      if (executor.has_input("factor")) executor.input("factor").values<double>()[0] = 1.0 + r;
      if (executor.has_input(kReplicaInput)) {
        executor.input(kReplicaInput).values<std::int64_t>()[0] = r;
      }
    }
    ranks.run();
    double sum = 0;
    for (int r = 0; r < (c.counts_once ? 1 : kRanks); ++r) {
      sum += ranks.executor(r).output("loss").item();
    }
    return sum;
  };
  total();
  std::vector<std::vector<double>> found;
  for (int r = 0; r < kRanks; ++r) {
    const auto dx = ranks.executor(r).output("dx").values<double>();
    found.emplace_back(dx.begin(), dx.end());
  }
  constexpr double kStep = 1e-5;
  for (std::size_t r = 0; r < kRanks; ++r) {
    for (std::size_t i = 0; i < xs[r].size(); ++i) {
      const auto moved = [&](double by) {
        for (std::size_t other = 0; other < kRanks; ++other) {
          if (other == r || c.same_x) xs[other][i] += by;
        }
      };
      moved(kStep);
      const double above = total();
      moved(-2 * kStep);
      const double below = total();
      moved(kStep);
      EXPECT_NEAR(found[r][i], (above - below) / (2 * kStep), 1e-7) << "rank " << r << ", " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, CollectiveGradient, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace lockstep
