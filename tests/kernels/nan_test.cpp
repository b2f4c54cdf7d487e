// NaNs must not disappear: a NaN in an input gives NaNs in exactly the elements of the output that
// depend on it, with every library, fused or not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/evaluate.h"
#include "kernels/op_case.h"

namespace lockstep {
namespace {

using Inputs = std::span<const Value>;
using Build = std::function<Value(Inputs)>;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// The value that `build` computes from these tensors with a library, after the passes of training.
Tensor run_on(const KernelLibrary& library, const std::vector<Tensor>& inputs, const Build& build) {
  Graph graph;
  std::vector<Value> values;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    values.push_back(graph.input(fmt::format("x{}", i), {inputs[i].dtype(), inputs[i].shape()}));
  }
  graph.output("y", build(values));
  State state(host(), 1);
  Executor executor(plan_for(std::move(graph), library), library, state);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    executor.input(fmt::format("x{}", i)).copy_from(inputs[i]);
  }
  executor.run();
  return executor.output("y").clone();
}

class NaN : public testing::TestWithParam<bool> {
 protected:
  const KernelLibrary& library() const { return GetParam() ? cpu_kernels() : reference_kernels(); }
  Tensor run(const std::vector<Tensor>& inputs, const Build& build) const {
    return run_on(library(), inputs, build);
  }
};
INSTANTIATE_TEST_SUITE_P(Libraries, NaN, testing::Bool(),
                         [](const testing::TestParamInfo<bool>& info) {
                           return std::string(info.param ? "Cpu" : "Reference");
                         });

Tensor random_floats(Shape shape, std::uint64_t stream) {
  Tensor tensor(DType::F32, std::move(shape));
  fill(tensor, {}, 11, stream);
  return tensor;
}

Tensor constant_floats(Shape shape, float value) {
  Tensor tensor(DType::F32, std::move(shape));
  for (float& element : tensor.values<float>()) element = value;
  return tensor;
}

std::vector<bool> nan_places(const Tensor& tensor) {
  std::vector<bool> places;
  for (float value : tensor.values<float>()) places.push_back(std::isnan(value));
  return places;
}

std::size_t count(const std::vector<bool>& places) {
  return static_cast<std::size_t>(std::count(places.begin(), places.end(), true));
}

std::size_t index(const Shape& shape, std::int64_t n, std::int64_t h, std::int64_t w,
                  std::int64_t c) {
  return static_cast<std::size_t>(((n * shape[1] + h) * shape[2] + w) * shape[3] + c);
}

TEST_P(NaN, ActivationsKeepIt) {
  for (const char* kind : {"relu", "relu6", "leaky_relu", "gelu", "gelu_tanh", "silu", "tanh",
                           "sigmoid", "softplus"}) {
    // Long enough for whole vectors and a remainder.
    Tensor x = random_floats({37}, 1);
    for (std::size_t place : {0u, 5u, 8u, 15u, 31u, 36u}) x.values<float>()[place] = kNaN;
    const Tensor y = run({x}, [&](Inputs in) { return activation(in[0], kind); });
    EXPECT_EQ(nan_places(y), nan_places(x)) << kind;
  }
}

TEST_P(NaN, MaxPoolKeepsItWhereverItIsInTheWindow) {
  struct Row {
    PoolOptions options;
    std::int64_t extent;
  };
  const std::vector<Row> rows{
      {{}, 4},
      {{.window = {3, 3}, .strides = {2, 2}}, 7},
      {{.window = {3, 3}, .strides = {2, 2}, .padding = {1, 1, 1, 1}}, 6},
  };
  for (const Row& row : rows) {
    for (const std::int64_t channels : {1, 8, 16, 17, 40}) {
      const Shape shape{1, row.extent, row.extent, channels};
      for (std::int64_t h = 0; h < row.extent; ++h) {
        for (std::int64_t w = 0; w < row.extent; ++w) {
          Tensor x = random_floats(shape, 2);
          const std::int64_t channel = (h * row.extent + w) % channels;
          x.values<float>()[index(shape, 0, h, w, channel)] = kNaN;
          const Tensor y = run({x}, [&](Inputs in) { return max_pool(in[0], row.options); });
          std::vector<bool> expected(static_cast<std::size_t>(y.shape().elements()), false);
          const auto reaches = [&](std::int64_t out, std::int64_t at, std::size_t axis) {
            const std::int64_t start =
                out * row.options.strides[axis] - row.options.padding[2 * axis];
            return at >= start && at < start + row.options.window[axis];
          };
          for (std::int64_t i = 0; i < y.shape()[1]; ++i) {
            for (std::int64_t j = 0; j < y.shape()[2]; ++j) {
              expected[index(y.shape(), 0, i, j, channel)] = reaches(i, h, 0) && reaches(j, w, 1);
            }
          }
          EXPECT_EQ(nan_places(y), expected)
              << shape.str() << " at (" << h << ", " << w << ", " << channel << ")";
        }
      }
    }
  }
}

// A filter with a NaN in one output channel, which makes that channel of every result NaN.
Tensor filter_with_nan(Shape shape, std::int64_t channel) {
  Tensor filter = random_floats(shape, 3);
  filter.values<float>()[static_cast<std::size_t>(channel)] = kNaN;
  return filter;
}

void expect_nan_in_channel(const Tensor& y, std::int64_t channel, const std::string& what) {
  const std::vector<bool> places = nan_places(y);
  const std::int64_t channels = y.shape()[-1];
  for (std::size_t i = 0; i < places.size(); ++i) {
    ASSERT_EQ(places[i], static_cast<std::int64_t>(i) % channels == channel)
        << what << ", element " << i;
  }
}

TEST_P(NaN, AConvolutionKeepsItThroughItsActivation) {
  for (const char* kind : {"linear", "relu", "relu6", "leaky_relu", "gelu", "gelu_tanh", "silu",
                           "tanh", "sigmoid", "softplus"}) {
    for (const std::int64_t in_channels : {1, 3, 8}) {
      for (const std::int64_t channels : {1, 8, 16, 17, 24}) {
        const std::int64_t bad = channels / 2;
        const Tensor x = random_floats({2, 6, 6, in_channels}, 4);
        const Tensor filter = filter_with_nan({3, 3, in_channels, channels}, bad);
        const Tensor bias = random_floats({channels}, 5);
        const Tensor y = run({x, filter, bias}, [&](Inputs in) {
          return activation(conv2d(in[0], in[1], in[2]), kind);
        });
        expect_nan_in_channel(y, bad, fmt::format("{} {}→{}", kind, in_channels, channels));
      }
    }
  }
}

TEST_P(NaN, OnePixelReachesTheWindowsThatContainIt) {
  for (const std::int64_t channels : {1, 8, 16, 17}) {
    const Shape image{1, 8, 8, 3};
    Tensor x = constant_floats(image, -1.0f);
    x.values<float>()[index(image, 0, 4, 3, 1)] = kNaN;
    const Tensor filter = constant_floats({3, 3, 3, channels}, 1.0f);
    const auto convolve = [](Inputs in) {
      return relu(conv2d(in[0], in[1], {.padding = {1, 1, 1, 1}}));
    };
    const Tensor y = run({x, filter}, convolve);
    EXPECT_EQ(count(nan_places(y)), static_cast<std::size_t>(9 * channels)) << channels;
    // Rows 3 to 5 and columns 2 to 4 of the result touch two by two pooling windows.
    const Tensor pooled = run({x, filter}, [&](Inputs in) { return max_pool(convolve(in)); });
    EXPECT_EQ(count(nan_places(pooled)), static_cast<std::size_t>(4 * channels)) << channels;
  }
}

TEST_P(NaN, AConvolutionKeepsItThroughReluAndMaxPool) {
  for (const std::int64_t channels : {1, 8, 16, 17, 24}) {
    const std::int64_t bad = channels / 2;
    const Tensor x = random_floats({2, 8, 8, 3}, 6);
    const Tensor filter = filter_with_nan({3, 3, 3, channels}, bad);
    const Tensor y = run({x, filter}, [](Inputs in) {
      return max_pool(relu(conv2d(in[0], in[1], {.padding = {1, 1, 1, 1}})));
    });
    // If the filter's first element only meets padding, the result may be free of NaN.
    EXPECT_GT(count(nan_places(y)), 0u) << channels;
    const Tensor valid =
        run({x, filter}, [](Inputs in) { return max_pool(relu(conv2d(in[0], in[1]))); });
    expect_nan_in_channel(valid, bad, fmt::format("{} channels", channels));
  }
}

TEST_P(NaN, AProductKeepsItThroughItsActivation) {
  for (const char* kind : {"linear", "relu", "relu6", "leaky_relu", "gelu", "gelu_tanh", "silu",
                           "tanh", "sigmoid", "softplus"}) {
    for (const bool biased : {false, true}) {
      const Shape shape{5, 7};
      Tensor a = random_floats(shape, 7);
      a.values<float>()[2 * 7 + 3] = kNaN;  // row 2
      const Tensor b = random_floats({7, 19}, 8);
      const Tensor bias = random_floats({19}, 9);
      const Tensor y = run({a, b, bias}, [&](Inputs in) {
        return activation(biased ? matmul(in[0], in[1], in[2]) : matmul(in[0], in[1]), kind);
      });
      std::vector<bool> expected(5 * 19, false);
      std::fill(expected.begin() + 2 * 19, expected.begin() + 3 * 19, true);
      EXPECT_EQ(nan_places(y), expected) << kind << (biased ? " biased" : "");
    }
  }
}

TEST_P(NaN, AvgPoolKeepsIt) {
  for (const std::int64_t channels : {1, 8, 16, 17}) {
    const Shape image{1, 6, 6, channels};
    Tensor x = random_floats(image, 19);
    x.values<float>()[index(image, 0, 3, 2, channels - 1)] = kNaN;
    const Tensor y = run({x}, [](Inputs in) { return avg_pool(in[0]); });
    std::vector<bool> expected(static_cast<std::size_t>(9 * channels), false);
    expected[index({1, 3, 3, channels}, 0, 1, 1, channels - 1)] = true;
    EXPECT_EQ(nan_places(y), expected) << channels;
  }
}

TEST_P(NaN, FillsItsRowInSoftmaxAndLayerNorm) {
  const Shape shape{5, 21};
  for (const std::size_t place : {0u, 20u, 48u, 104u}) {
    Tensor x = random_floats(shape, 20);
    x.values<float>()[place] = kNaN;
    std::vector<bool> expected(5 * 21, false);
    std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(place / 21 * 21), 21, true);
    EXPECT_EQ(nan_places(run({x}, [](Inputs in) { return softmax(in[0]); })), expected) << place;
    const Tensor gamma = constant_floats({21}, 1.0f);
    const Tensor y =
        run({x, gamma, gamma}, [](Inputs in) { return layer_norm(in[0], in[1], in[2]); });
    EXPECT_EQ(nan_places(y), expected) << place;
  }
}

TEST_P(NaN, FillsItsChannelInBatchNormAndRelu) {
  for (const std::int64_t channels : {1, 5, 8, 16, 17}) {
    for (const bool with_residual : {false, true}) {
      const std::int64_t bad = channels / 2;
      const Shape shape{2, 3, 3, channels};
      Tensor x = random_floats(shape, 10);
      x.values<float>()[index(shape, 1, 2, 0, bad)] = kNaN;
      const Tensor gamma = constant_floats({channels}, 1.5f);
      const Tensor beta = constant_floats({channels}, 0.5f);
      const Tensor y = run({x, gamma, beta, random_floats(shape, 12)}, [&](Inputs in) {
        const Value normal = batch_norm(in[0], in[1], in[2]).y;
        return relu(with_residual ? add(normal, in[3]) : normal);
      });
      expect_nan_in_channel(y, bad, fmt::format("{} channels", channels));
    }
  }
}

TEST_P(NaN, AResidualKeepsItThroughSumAndRelu) {
  const Shape shape{2, 3, 3, 8};
  Tensor residual = random_floats(shape, 13);
  residual.values<float>()[index(shape, 1, 0, 2, 6)] = kNaN;
  const Tensor y = run(
      {random_floats(shape, 14), constant_floats({8}, 1.0f), constant_floats({8}, 0.0f), residual},
      [](Inputs in) { return relu(add(batch_norm(in[0], in[1], in[2]).y, in[3])); });
  EXPECT_EQ(nan_places(y), nan_places(residual));
}

TEST_P(NaN, ReduceMaxKeepsIt) {
  const Shape shape{6, 21};
  for (std::size_t place = 0; place < 6 * 21; ++place) {
    Tensor x = random_floats(shape, 15);
    x.values<float>()[place] = kNaN;
    const Tensor rows = run({x}, [](Inputs in) { return reduce_max(in[0], {.axes = {1}}); });
    const Tensor columns = run({x}, [](Inputs in) { return reduce_max(in[0], {.axes = {0}}); });
    const Tensor all = run({x}, [](Inputs in) { return reduce_max(in[0]); });
    std::vector<bool> expected_rows(6, false);
    std::vector<bool> expected_columns(21, false);
    expected_rows[place / 21] = true;
    expected_columns[place % 21] = true;
    EXPECT_EQ(nan_places(rows), expected_rows) << place;
    EXPECT_EQ(nan_places(columns), expected_columns) << place;
    EXPECT_EQ(nan_places(all), std::vector<bool>{true}) << place;
  }
}

TEST_P(NaN, MaximumAndMinimumKeepIt) {
  Tensor a = random_floats({19}, 16);
  Tensor b = random_floats({19}, 17);
  a.values<float>()[3] = kNaN;
  b.values<float>()[17] = kNaN;
  std::vector<bool> expected(19, false);
  expected[3] = expected[17] = true;
  EXPECT_EQ(nan_places(run({a, b}, [](Inputs in) { return maximum(in[0], in[1]); })), expected);
  EXPECT_EQ(nan_places(run({a, b}, [](Inputs in) { return minimum(in[0], in[1]); })), expected);
}

}  // namespace
}  // namespace lockstep
