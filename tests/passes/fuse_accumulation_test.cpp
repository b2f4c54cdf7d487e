// Products that add gradients to their accumulators: when they do, where the sums lie, and that the
// results are those of separate additions.
#include "lockstep/passes/fuse_accumulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/autodiff/gradients.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/passes/accumulate.h"
#include "lockstep/passes/pipeline.h"
#include "passes/graph_checks.h"

namespace lockstep {
namespace {

// The reference, whose products do not accumulate.
const KernelLibrary& separate_kernels() {
  static const KernelLibrary library = [] {
    KernelLibrary result;
    result.add(Op::MatMul, {.name = "separate.matmul", .make = [](const KernelCall& call) {
                              return reference_kernels().make(call.graph, call.node);
                            }});
    add_reference_kernels(result);
    return result;
  }();
  return library;
}

// Two dense layers, of which the first has a bias, and SGD.
class AccumulatedNet {
 public:
  enum class Extra { None, OutputGradient, AllReduce };

  Graph trace(MicroForm form, std::int64_t rows, Extra extra = Extra::None) {
    Graph graph;
    const Value x = graph.input("x", {DType::F32, {rows, 6}});
    const std::vector<Value> parameters = {graph.variable(w_), graph.variable(b_),
                                           graph.variable(v_)};
    const Value hidden = tanh(matmul(x, parameters[0], parameters[1]));
    const Value loss = reduce_sum(square(matmul(hidden, parameters[2])));
    const std::vector<Value> own = gradients(loss, parameters);
    if (extra == Extra::OutputGradient) graph.output("gradient", own[2]);
    update({.rate = graph.scalar(0.01),
            .scale = graph.scalar(0.1),
            .step = graph.scalar(1, DType::I64),
            .parameters = parameters,
            .gradients = all_reduce_gradients(own),
            .slots = {}},
           "sgd", {});
    AccumulatePass({.form = form, .accumulators = &accumulators_, .sum_outputs = false}).run(graph);
    return extra == Extra::AllReduce ? std::move(graph) : alone(graph);
  }

  // The parameters after a step of three micro-batches, one of them without rows.
  std::vector<std::vector<float>> train(const KernelLibrary& library) {
    State state(host(), 1);
    const auto executor = [&](MicroForm form, std::int64_t rows) {
      Graph graph = trace(form, rows);
      optimize(graph, library);
      return std::make_unique<Executor>(make_plan(std::move(graph), library), library, state);
    };
    const auto some = executor(MicroForm::Add, 5), none = executor(MicroForm::Add, 0);
    const auto last = executor(MicroForm::Last, 3);
    for (const VariableRef& variable : some->plan().graph.variables()) {
      Tensor start(DType::F32, variable->shape);
      const bool left = Accumulators::is_one(*variable);  // by a step that was interrupted
      double next = 0;
      for (float& value : start.values<float>()) {
        value = left ? std::numeric_limits<float>::quiet_NaN()
                     : static_cast<float>(std::sin(next += 1.0));
      }
      state.set(*variable, start);
    }
    const auto run = [](Executor& each, float accumulated) {
      Tensor x = each.input("x");
      double next = each.plan().graph.inputs().size();
      for (float& value : x.values<float>()) value = static_cast<float>(std::cos(next += 1.0));
      if (each.has_input(kAccumulatedInput)) {
        each.input(kAccumulatedInput).values<float>()[0] = accumulated;
      }
      each.run();
      each.wait();
    };
    run(*some, 0);
    run(*some, 1);
    run(*none, 1);
    run(*last, 1);
    std::vector<std::vector<float>> values;
    for (const VariableRef& parameter : {w_, b_, v_}) {
      const Tensor tensor = state.get(*parameter);
      values.emplace_back(tensor.values<float>().begin(), tensor.values<float>().end());
    }
    return values;
  }

 private:
  // What the pass Place makes of it for a single rank.
  static Graph alone(const Graph& graph) {
    Rewriter rewriter(graph);
    for (const Node& node : graph.nodes()) {
      if (!is_bucket(node)) {
        rewriter.copy(node);
        continue;
      }
      for (std::size_t i = 0; i < node.outputs.size(); ++i) {
        rewriter.set(node.outputs[i], rewriter.map(node.inputs[i]));
      }
    }
    return rewriter.finish();
  }

  static VariableRef parameter(const char* name, Shape shape) {
    return std::make_shared<const Variable>(
        Variable{.name = name, .shape = std::move(shape), .initializer = {}});
  }

  VariableRef w_ = parameter("w", {6, 4}), b_ = parameter("b", {4}), v_ = parameter("v", {4, 3});
  Accumulators accumulators_;
};

// The products that accumulate.
std::vector<const Node*> sums_of(const Graph& graph) {
  std::vector<const Node*> sums;
  for (const Node& node : graph.nodes()) {
    if (accumulates(node)) sums.push_back(&node);
  }
  return sums;
}

Graph fused(MicroForm form, AccumulatedNet::Extra extra, const KernelLibrary& library) {
  AccumulatedNet net;
  Graph graph = net.trace(form, 5, extra);
  optimize(graph, library);
  return graph;
}

TEST(FuseAccumulation, ProductsAddToTheMemoryOfTheirAccumulators) {
  const Plan plan =
      make_plan(fused(MicroForm::Add, AccumulatedNet::Extra::None, cpu_kernels()), cpu_kernels());
  const std::vector<const Node*> sums = sums_of(plan.graph);
  ASSERT_EQ(sums.size(), 2u) << print(plan.graph);
  EXPECT_EQ(count(plan.graph, Op::Assign), 2);
  for (const Node* sum : sums) {
    ASSERT_EQ(sum->inputs.size(), 4u);
    EXPECT_EQ(plan.graph.producer(sum->inputs[3]).name, kAccumulatedInput);
    const Allocation& where = plan.values[static_cast<std::size_t>(sum->outputs[0])];
    EXPECT_EQ(where.place, Place::Variable);
    EXPECT_EQ(where.of, sum->inputs[2]);
  }
  // The bias is added by itself.
  EXPECT_EQ(only(plan.graph, Op::Update).attrs.integer("count"), 1);
}

TEST(FuseAccumulation, TheLastSumsOfOneRankLieInTheAccumulators) {
  const Plan plan =
      make_plan(fused(MicroForm::Last, AccumulatedNet::Extra::None, cpu_kernels()), cpu_kernels());
  const std::vector<const Node*> sums = sums_of(plan.graph);
  ASSERT_EQ(sums.size(), 2u) << print(plan.graph);
  for (const Node* sum : sums) {
    EXPECT_EQ(sum->inputs.size(), 3u);
    EXPECT_EQ(plan.values[static_cast<std::size_t>(sum->outputs[0])].of, sum->inputs[2]);
  }
}

TEST(FuseAccumulation, SumsThatAreAllReducedAreComputedInTheirBucket) {
  const Plan plan = make_plan(
      fused(MicroForm::Last, AccumulatedNet::Extra::AllReduce, cpu_kernels()), cpu_kernels());
  const std::vector<const Node*> sums = sums_of(plan.graph);
  ASSERT_EQ(sums.size(), 2u) << print(plan.graph);
  EXPECT_EQ(count(plan.graph, Op::Assign), 0);
  const Node& bucket = only(plan.graph, Op::AllReduce);
  for (const Node* sum : sums) {
    const auto place = std::ranges::find(bucket.inputs, sum->outputs[0]) - bucket.inputs.begin();
    ASSERT_LT(place, std::ssize(bucket.inputs));
    const auto at = [&](ValueId id) { return plan.values[static_cast<std::size_t>(id)]; };
    EXPECT_EQ(at(sum->outputs[0]).place, Place::Arena);
    EXPECT_EQ(at(sum->outputs[0]).offset,
              at(bucket.outputs[static_cast<std::size_t>(place)]).offset);
  }
}

TEST(FuseAccumulation, AGradientThatIsReadElsewhereIsAddedByItself) {
  const Graph graph = fused(MicroForm::Last, AccumulatedNet::Extra::OutputGradient, cpu_kernels());
  EXPECT_EQ(sums_of(graph).size(), 1u) << print(graph);
}

TEST(FuseAccumulation, KernelsThatDoNotOfferItKeepTheAddition) {
  for (const MicroForm form : {MicroForm::Add, MicroForm::Last}) {
    const Graph graph = fused(form, AccumulatedNet::Extra::None, separate_kernels());
    EXPECT_EQ(sums_of(graph).size(), 0u) << print(graph);
    EXPECT_EQ(count(graph, Op::Assign), 0);
  }
}

// Accumulators hold NaN before the first micro-batch.
TEST(FuseAccumulation, GivesTheUpdateOfSeparateAdditions) {
  const auto expected = AccumulatedNet().train(separate_kernels());
  for (const KernelLibrary* library : {&cpu_kernels(), &reference_kernels()}) {
    const auto actual = AccumulatedNet().train(*library);
    for (std::size_t v = 0; v < expected.size(); ++v) {
      for (std::size_t i = 0; i < expected[v].size(); ++i) {
        ASSERT_NEAR(actual[v][i], expected[v][i], 1e-6) << v << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
