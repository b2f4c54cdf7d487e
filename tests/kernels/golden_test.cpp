// Compares reductions, movements and random masks with NumPy and TensorFlow (golden/make_ops.py):
// these ops have only one CPU kernel, so there is no other to compare with.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "golden/ops.h"
#include "kernels/evaluate.h"

namespace lockstep {
namespace {

using Inputs = std::span<const Value>;

struct Row {
  std::string name;
  std::function<Value(Inputs)> build;
};

std::vector<Tensor> inputs_of(const std::string& name) {
  std::vector<Tensor> inputs;
  for (int i = 0; golden::ops().contains(fmt::format("{}/x{}", name, i)); ++i) {
    inputs.push_back(golden::op(fmt::format("{}/x{}", name, i)));
  }
  return inputs;
}

constexpr double kUnit = 5.97e-8;  // 2^-24: the rounding error of a number near 1 in f32
// Compares all rows of a family on every library: exactly, or, for sums of n numbers near 1, within
// n rounding errors. Long rows are added up in wider chunks, so their n counts as at most 16.
void expect_family(const std::string& family, const std::vector<Row>& rows, bool exact) {
  std::size_t results = 0;
  for (const auto& [name, tensor] : golden::ops()) {
    results += name.starts_with(family + "/") && name.ends_with("/y");
  }
  EXPECT_EQ(results, rows.size()) << "every result of the script must be compared";
  for (const Row& row : rows) {
    const std::string name = family + "/" + row.name;
    const Tensor expected = golden::op(name + "/y");
    for (const KernelLibrary* library : {&reference_kernels(), &cpu_kernels()}) {
      const Tensor found = evaluate(inputs_of(name), row.build, *library);
      ASSERT_EQ(found.dtype(), expected.dtype()) << name;
      ASSERT_EQ(found.shape(), expected.shape()) << name;
      if (exact || found.dtype() != DType::F32) {
        EXPECT_TRUE(found.same_bits(expected)) << name;
        continue;
      }
      const std::int64_t terms = inputs_of(name)[0].elements() / expected.elements();
      const double unit = kUnit * static_cast<double>(std::min<std::int64_t>(terms, 16));
      const auto a = found.values<float>(), b = expected.values<float>();
      for (std::size_t i = 0; i < a.size(); ++i) {
        EXPECT_NEAR(a[i], b[i], unit * std::max(1.0F, std::abs(b[i]))) << name << " " << i;
      }
    }
  }
}

TEST(GoldenReduce, AgreesWithNumPy) {
  struct Form {
    const char* name;
    Ints axes;
    bool keepdims = false;
  };
  const std::vector<Form> forms = {{"all", {}},
                                   {"leading", {0}},
                                   {"leading_two", {0, 1}},
                                   {"trailing", {-1}},
                                   {"trailing_two", {1, 2}, true},
                                   {"middle", {1}},
                                   {"around", {0, 2}},
                                   {"alternating", {1, 3}},
                                   {"alternating_from_the_front", {0, 2}, true},
                                   {"long_row", {1}},
                                   {"wide_columns", {0}}};
  std::vector<Row> rows;
  for (const Form& form : forms) {
    const ReduceOptions options{.axes = form.axes, .keepdims = form.keepdims};
    rows.push_back({std::string("sum_") + form.name,
                    [options](Inputs in) { return reduce_sum(in[0], options); }});
    rows.push_back({std::string("mean_") + form.name,
                    [options](Inputs in) { return reduce_mean(in[0], options); }});
    rows.push_back({std::string("max_") + form.name,
                    [options](Inputs in) { return reduce_max(in[0], options); }});
  }
  for (int axis : {0, 1, 2}) {
    rows.push_back(
        {fmt::format("argmax_{}", axis), [axis](Inputs in) { return argmax(in[0], axis); }});
  }
  expect_family("reduce", rows, /*exact=*/false);
}

TEST(GoldenShape, AgreesWithNumPyExactly) {
  std::vector<Row> rows = {{"transpose_matrix",
                            [](Inputs in) {
                              return transpose(in[0], {1, 0});
                            }},
                           {"transpose_rotated",
                            [](Inputs in) {
                              return transpose(in[0], {1, 2, 0});
                            }},
                           {"transpose_reversed",
                            [](Inputs in) {
                              return transpose(in[0], {3, 2, 1, 0});
                            }},
                           {"transpose_swapped_middle",
                            [](Inputs in) {
                              return transpose(in[0], {0, 2, 1, 3});
                            }},
                           {"reshape",
                            [](Inputs in) {
                              return reshape(in[0], {5, -1});
                            }},
                           {"slice",
                            [](Inputs in) {
                              return slice(in[0], {1, 2, 0}, {3, -1, 2});
                            }},
                           {"pad",
                            [](Inputs in) {
                              return pad(in[0], {1, 0}, {2, 3}, 0.5);
                            }},
                           {"pad_images",
                            [](Inputs in) {
                              return pad(in[0], {0, 1, 2, 0}, {0, 1, 1, 0});
                            }},
                           {"broadcast_columns",
                            [](Inputs in) {
                              return broadcast_to(in[0], Shape{2, 3, 4});
                            }},
                           {"one_hot", [](Inputs in) { return one_hot(in[0], 5); }},
                           {"gather", [](Inputs in) { return gather(in[0], in[1]); }},
                           {"gather_grad", [](Inputs in) { return gather_grad(in[0], in[1], 4); }}};
  for (int axis : {0, 1, 2}) {
    rows.push_back(
        {fmt::format("concat_{}", axis), [axis](Inputs in) { return concat(in, axis); }});
    rows.push_back({fmt::format("split_{}", axis), [axis](Inputs in) {
                      return split(in[0], {1, 3, 2}, axis)[1];
                    }});
  }
  expect_family("shape", rows, /*exact=*/true);
}

TEST(GoldenDropout, DrawsTheMasksOfTensorFlowsPhilox) {
  struct Draw {
    const char* name;
    DropoutOptions options;
    std::int64_t step;
  };
  for (const Draw& draw : {Draw{"half", {.rate = 0.5, .seed = 3, .key = 8}, 5},
                           Draw{"few", {.rate = 0.125, .seed = 3}, 0x1'0000'0007},
                           Draw{"most", {.rate = 0.75, .seed = 1, .key = 1}, 2}}) {
    const Tensor expected = golden::op(fmt::format("dropout/{}/y", draw.name));
    for (const KernelLibrary* library : {&reference_kernels(), &cpu_kernels()}) {
      Graph graph;
      graph.output("y", dropout(graph.input("x", {DType::F32, expected.shape()}), draw.options));
      State state(host(), 1);
      Executor executor(make_plan(std::move(graph), *library), *library, state);
      Tensor ones = executor.input("x");
      std::ranges::fill(ones.values<float>(), 1.0F);
      executor.input(kRandomStateInput)
          .copy_from(Tensor::of(std::vector<std::int64_t>{draw.step, 0}, Shape{2}));
      executor.run();
      const Tensor found = executor.output("y").clone();
      const auto a = found.values<float>(), b = expected.values<float>();
      for (std::size_t i = 0; i < a.size(); ++i) {
        ASSERT_FLOAT_EQ(a[i], b[i]) << draw.name << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
