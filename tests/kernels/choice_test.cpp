// How a library chooses among kernels: by order, or by measuring if that is allowed.
#include "lockstep/kernels/choice.h"

#include <gtest/gtest.h>

#include "kernels/cases_conv.h"
#include "kernels/evaluate.h"
#include "kernels/op_case_check.h"

namespace lockstep {
namespace {

// A clock that only the kernels below advance, so that the measured times are known.
struct Times {
  std::int64_t now = 0;
  int runs = 0;
};
Times& times() {
  static Times times;
  return times;
}

template <int kCost>
std::unique_ptr<Kernel> make_taking(const KernelCall&) {
  return make_kernel([](const Binding& binding) {
    times().now += kCost;
    ++times().runs;
    binding.out<float>(0)[0] = kCost;
  });
}

NodeLayouts row_major(const KernelCall& call) {
  return {std::vector<Layout>(call.in_count()), std::vector<Layout>(1)};
}

// Three kernels for one op; in the library's order, the slowest comes first.
KernelLibrary fakes() {
  times() = {};
  KernelLibrary library;
  library.add(Op::Exp, {.name = "slow", .make = make_taking<2000>, .layouts = row_major});
  library.add(Op::Exp, {.name = "fast", .make = make_taking<300>, .layouts = row_major});
  library.add(Op::Exp, {.name = "middle", .make = make_taking<700>, .layouts = row_major});
  return library;
}

MeasuringOptions by_fake_clock() {
  return {.runs = 2, .clock = [] { return times().now; }};
}

// The kernel that a library chooses for exp of f32(n), after it was asked for layouts.
std::string kernel_for(const KernelLibrary& library, std::int64_t n) {
  Graph graph;
  const Value y = exp(graph.input("x", {DType::F32, {n}}));
  const Node& node = graph.producer(y.id());
  library.layouts(graph, node);
  return std::string(library.find({graph, node}).name);
}

TEST(Choice, IsByOrderAndRunsNothingUnlessMeasuringIsAllowed) {
  const KernelLibrary library = fakes();
  EXPECT_EQ(kernel_for(library, 4), "slow");
  EXPECT_EQ(times().runs, 0);
  EXPECT_TRUE(library.choices().empty());
}

TEST(Choice, AWrapperReceivesTheKernelsOfItsOpOnly) {
  KernelLibrary library;
  add_reference_kernels(library);
  int wrapped = 0;
  library.wrap(Op::Exp, [&](const KernelCall& call, std::unique_ptr<Kernel> kernel) {
    EXPECT_EQ(call.node.op, Op::Exp);
    EXPECT_NE(kernel, nullptr);
    ++wrapped;
    return make_kernel([](const Binding& binding) { binding.out<float>(0)[0] = 7; });
  });
  const std::vector<Tensor> results = evaluate_all(
      {floats({1})},
      [](std::span<const Value> in) {
        return std::vector<Value>{exp(in[0]), sqrt(in[0])};
      },
      library);
  EXPECT_EQ(wrapped, 1);
  EXPECT_EQ(list<float>(results[0]), std::vector<float>{7});
  EXPECT_EQ(list<float>(results[1]), std::vector<float>{1});
}

TEST(Choice, TheFastestIsChosenAndRememberedForItsShape) {
  KernelLibrary library = fakes();
  library.choose_by_measuring(by_fake_clock());
  EXPECT_EQ(kernel_for(library, 4), "fast");
  const int runs = times().runs;
  EXPECT_EQ(runs, 3 * 3);  // for each, one warm-up run and two more
  EXPECT_EQ(kernel_for(library, 4), "fast");
  EXPECT_EQ(times().runs, runs);
  EXPECT_EQ(library.choices().size(), 1u);
  EXPECT_EQ(kernel_for(library, 5), "fast");
  EXPECT_EQ(library.choices().size(), 2u);
}

TEST(Choice, ChoicesOfAnEarlierRunAreNotMeasuredAgain) {
  KernelLibrary first = fakes();
  first.choose_by_measuring(by_fake_clock());
  kernel_for(first, 4);
  KernelChoices choices = first.choices();
  ASSERT_EQ(choices.size(), 1u);
  choices.begin()->second = "middle";
  KernelLibrary second = fakes();
  second.choose_by_measuring(by_fake_clock(), choices);
  EXPECT_EQ(kernel_for(second, 4), "middle");
  EXPECT_EQ(times().runs, 0);
}

TEST(Choice, AChoiceThatNoLongerExistsIsMeasuredAgain) {
  KernelLibrary first = fakes();
  first.choose_by_measuring(by_fake_clock());
  kernel_for(first, 4);
  KernelChoices choices = first.choices();
  choices.begin()->second = "gone";
  KernelLibrary second = fakes();
  second.choose_by_measuring(by_fake_clock(), choices);
  EXPECT_EQ(kernel_for(second, 4), "fast");
}

TEST(Choice, WhenTheTimeIsUpTheFirstIsChosen) {
  KernelLibrary library = fakes();
  MeasuringOptions options = by_fake_clock();
  options.most_seconds = 0;
  library.choose_by_measuring(options);
  EXPECT_EQ(kernel_for(library, 4), "slow");
  EXPECT_EQ(times().runs, 0);
}

// The results of a case with a library, after the passes of training.
std::vector<std::pair<std::string, Tensor>> results_on(const OpCase& op_case,
                                                       const KernelLibrary& library) {
  Graph graph = build_graph(op_case, DType::F32).graph;
  optimize(graph, library);
  CaseRun run(op_case, std::move(graph), library);
  run.run();
  return run.results();
}

void expect_close(const std::vector<std::pair<std::string, Tensor>>& actual,
                  const std::vector<std::pair<std::string, Tensor>>& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_LE(relative_error(actual[i].second, expected[i].second), tolerance) << actual[i].first;
  }
}

class ConvChoice : public testing::TestWithParam<OpCase> {};
std::vector<OpCase> untimed_conv_cases() {
  std::vector<OpCase> cases = conv_cases();
  std::erase_if(cases, [](const OpCase& op_case) { return op_case.timed; });
  return cases;
}

TEST_P(ConvChoice, MeasuredKernelsAgreeWithTheReference) {
  KernelLibrary library = make_cpu_kernels();
  library.choose_by_measuring();
  CaseRun reference(GetParam(), build_graph(GetParam(), DType::F32).graph, reference_kernels());
  reference.run();
  expect_close(results_on(GetParam(), library), reference.results(), GetParam().tolerance);
}

// Independent of the clock: forces each of the other algorithms by a given choice.
TEST_P(ConvChoice, EveryAlgorithmAgreesWithTheReference) {
  CaseRun reference(GetParam(), build_graph(GetParam(), DType::F32).graph, reference_kernels());
  reference.run();
  KernelLibrary asked = make_cpu_kernels();
  asked.choose_by_measuring({.most_seconds = 0});
  results_on(GetParam(), asked);
  for (const char* way : {".second", ".third", ".winograd"}) {
    KernelChoices choices = asked.choices();
    std::erase_if(choices, [](const auto& choice) {
      return choice.second.find("conv2d") == std::string::npos;
    });
    for (auto& [key, name] : choices) {
      name = "onednn" + name.substr(name.find('.')) + way;
      if (const auto thin = name.find("thin_"); thin != std::string::npos) name.erase(thin, 5);
    }
    KernelLibrary library = make_cpu_kernels();
    library.choose_by_measuring({.most_seconds = 0}, choices);
    SCOPED_TRACE(way);
    expect_close(results_on(GetParam(), library), reference.results(), GetParam().tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ConvChoice, testing::ValuesIn(untimed_conv_cases()), case_name);

const OpCase kOneChannel{.name = "one_channel_back",
                         .inputs = {f32({4, 14, 14, 1}), f32({3, 3, 1, 16})},
                         .build = [](Graph&, CaseInputs in) { return conv2d(in[0], in[1]); }};

TEST(Choice, AForcedChoiceUsesAnotherKernel) {
  KernelLibrary asked = make_cpu_kernels();
  asked.choose_by_measuring({.most_seconds = 0});
  results_on(kOneChannel, asked);
  KernelChoices choices = asked.choices();
  if (std::none_of(choices.begin(), choices.end(), [](const auto& choice) {
        return choice.second == "onednn.conv2d_grad_input";
      })) {
    GTEST_SKIP() << "built without oneDNN";
  }
  for (auto& [key, name] : choices) {
    if (name == "onednn.conv2d_grad_input") name += ".second";
  }
  KernelLibrary library = make_cpu_kernels();
  library.choose_by_measuring({.most_seconds = 0}, choices);
  Graph graph = build_graph(kOneChannel, DType::F32).graph;
  optimize(graph, library);
  std::vector<std::string> kernels;
  for (const Node& node : graph.nodes()) {
    if (node.op != Op::Conv2DGradInput) continue;
    kernels.emplace_back(library.find({graph, node}).name);
  }
  EXPECT_EQ(kernels, std::vector<std::string>{"onednn.conv2d_grad_input.second"});
}

TEST(Choice, TheSameChoicesGiveTheSameBits) {
  KernelLibrary first = make_cpu_kernels();
  first.choose_by_measuring();
  const auto expected = results_on(kOneChannel, first);
  KernelLibrary second = make_cpu_kernels();
  second.choose_by_measuring({.most_seconds = 0}, first.choices());
  const auto actual = results_on(kOneChannel, second);
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(actual[i].second.same_bits(expected[i].second)) << actual[i].first;
  }
  EXPECT_EQ(first.choices(), second.choices());
}

}  // namespace
}  // namespace lockstep
