// Cases whose shapes and options are drawn at random: odd sizes, ones, empty batches and
// combinations that nobody would write down. A case depends only on its family and number, and its
// name holds both ("drawn_conv_17"), so that a failing case can be run again by name.
#pragma once

#include <algorithm>
#include <iterator>

#include "kernels/op_case.h"

namespace lockstep {

inline constexpr int kDrawnCases = 40;  // per family

// A sequence of small random choices.
class Draw {
 public:
  explicit Draw(std::string_view case_name) : random_(hash_name(case_name), 2024) {}

  std::int64_t from(std::int64_t low, std::int64_t high) {  // both included
    return low +
           static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(high - low + 1)));
  }
  bool one_in(std::int64_t n) { return from(1, n) == 1; }
  template <class T>
  T among(std::initializer_list<T> choices) {
    return choices.begin()[from(0, static_cast<std::int64_t>(choices.size()) - 1)];
  }
  // The number of samples: sometimes none, often one.
  std::int64_t batch() { return one_in(12) ? 0 : one_in(4) ? 1 : from(2, 5); }
  // An extent; ones are more likely than other values.
  std::int64_t extent(std::int64_t most) { return one_in(6) ? 1 : from(1, most); }
  std::int64_t channels() { return among<std::int64_t>({1, 3, 5, 8, 16, 17, 24, 32}); }

 private:
  RandomSequence random_;
};

// Calls make(draw, case) for each case of a family; returns the cases.
template <class Make>
std::vector<OpCase> draw_cases(const std::string& family, Make make) {
  std::vector<OpCase> cases;
  for (int i = 0; i < kDrawnCases; ++i) {
    OpCase op_case{.name = fmt::format("drawn_{}_{}", family, i)};
    Draw draw(op_case.name);
    make(draw, op_case);
    cases.push_back(std::move(op_case));
  }
  return cases;
}

inline std::vector<OpCase> drawn_matmul_cases() {
  return draw_cases("matmul", [](Draw& draw, OpCase& op_case) {
    const std::int64_t m = draw.one_in(12) ? 0 : draw.extent(70);
    const std::int64_t k = draw.extent(70);
    const std::int64_t n = draw.extent(70);
    MatMulOptions options{.transpose_a = draw.one_in(2), .transpose_b = draw.one_in(2)};
    std::vector<std::int64_t> left;
    for (std::int64_t axes = draw.from(0, 2); axes > 0; --axes) left.push_back(draw.from(1, 4));
    std::vector<std::int64_t> right;
    if (draw.one_in(2)) right = left;
    const auto append = [](std::vector<std::int64_t>& dims, std::int64_t a, std::int64_t b,
                           bool transposed) {
      dims.push_back(transposed ? b : a);
      dims.push_back(transposed ? a : b);
    };
    append(left, m, k, options.transpose_a);
    append(right, k, n, options.transpose_b);
    options.activation =
        draw.among<const char*>({"", "", "relu", "relu6", "leaky_relu", "tanh", "sigmoid"});
    const bool separate = draw.one_in(2);  // a separate activation node, which the pass may fuse
    const std::string after = separate ? options.activation : "linear";
    if (separate) options.activation = "";
    op_case.inputs = {f32(Shape(left)), f32(Shape(right))};
    if (draw.one_in(2)) op_case.inputs.push_back(f32({n}));
    op_case.build = [options, after](Graph&, CaseInputs in) {
      const Value y =
          in.size() > 2 ? matmul(in[0], in[1], in[2], options) : matmul(in[0], in[1], options);
      return after.empty() ? y : activation(y, after);
    };
  });
}

// A convolution's image, filter and options, which fit together.
struct DrawnConv {
  Shape image;
  Shape filter;
  ConvOptions options;
};

inline DrawnConv draw_conv(Draw& draw) {
  DrawnConv conv;
  ConvOptions& options = conv.options;
  const std::array<std::int64_t, 2> window{draw.extent(5), draw.extent(5)};
  std::array<std::int64_t, 2> extents{};
  for (std::size_t axis : {0u, 1u}) {
    options.strides[axis] = draw.one_in(2) ? 1 : draw.from(1, 3);
    options.dilations[axis] = draw.one_in(2) ? 1 : draw.from(1, 3);
    const std::int64_t reach = (window[axis] - 1) * options.dilations[axis] + 1;
    std::int64_t padding = 0;
    for (std::size_t side : {0u, 1u}) {
      options.padding[2 * axis + side] = draw.one_in(2) ? 0 : draw.from(0, reach - 1);
      padding += options.padding[2 * axis + side];
    }
    const std::int64_t least = std::max<std::int64_t>(1, reach - padding);
    extents[axis] = draw.one_in(5) ? least : least + draw.from(0, 9);
  }
  const std::int64_t channels = draw.channels();
  std::int64_t outputs = draw.channels();
  if (draw.one_in(3)) {
    options.groups = draw.one_in(2) ? channels : channels % 2 == 0 ? 2 : 1;
    outputs = options.groups * draw.from(1, options.groups == channels ? 2 : 9);
  }
  conv.image = Shape{draw.batch(), extents[0], extents[1], channels};
  conv.filter = Shape{window[0], window[1], channels / options.groups, outputs};
  return conv;
}

inline std::vector<OpCase> drawn_conv_cases() {
  return draw_cases("conv", [](Draw& draw, OpCase& op_case) {
    DrawnConv conv = draw_conv(draw);
    op_case.inputs = {f32(conv.image), f32(conv.filter)};
    if (draw.one_in(2)) op_case.inputs.push_back(f32({conv.filter[3]}));
    const std::string after = draw.among<const char*>({"linear", "linear", "relu", "tanh"});
    op_case.build = [options = conv.options, after](Graph&, CaseInputs in) {
      const Value y =
          in.size() > 2 ? conv2d(in[0], in[1], in[2], options) : conv2d(in[0], in[1], options);
      return activation(y, after);
    };
  });
}

// An image that may be the result of a 3×3 convolution, and then has a convolution's layout.
struct DrawnImage {
  Shape shape;
  bool after_conv = false;

  std::vector<CaseInput> inputs() const {
    if (!after_conv) return {f32(shape)};
    return {f32(shape.with(3, 3)), f32({3, 3, 3, shape[3]})};
  }
  // The image, and the number of inputs that it uses.
  std::pair<Value, std::size_t> build(CaseInputs in) const {
    if (!after_conv) return {in[0], 1};
    return {conv2d(in[0], in[1], {.padding = {1, 1, 1, 1}}), 2};
  }
};

inline DrawnImage draw_image(Draw& draw, std::int64_t least_height, std::int64_t least_width) {
  return {{draw.batch(), least_height + draw.from(0, 9), least_width + draw.from(0, 9),
           draw.one_in(6) ? 40 : draw.channels()},
          draw.one_in(2)};
}

inline std::vector<OpCase> drawn_pool_cases() {
  return draw_cases("pool", [](Draw& draw, OpCase& op_case) {
    PoolOptions options{.window = {draw.extent(4), draw.extent(4)}};
    for (std::size_t axis : {0u, 1u}) {
      options.strides[axis] = draw.one_in(2) ? options.window[axis] : draw.from(1, 4);
      for (std::size_t side : {0u, 1u}) {
        const std::int64_t most = options.window[axis] - 1;
        options.padding[2 * axis + side] = draw.one_in(2) ? 0 : draw.from(0, most);
      }
    }
    const DrawnImage image = draw_image(draw, options.window[0], options.window[1]);
    const bool largest = draw.from(1, 3) > 1;
    const bool with_relu = draw.one_in(3);
    op_case.inputs = image.inputs();
    op_case.build = [=](Graph&, CaseInputs in) {
      Value x = image.build(in).first;
      if (with_relu) x = relu(x);
      return largest ? max_pool(x, options) : avg_pool(x, options);
    };
  });
}

inline std::vector<OpCase> drawn_norm_cases() {
  return draw_cases("norm", [](Draw& draw, OpCase& op_case) {
    const DrawnImage image = draw_image(draw, 1, 1);
    const bool with_residual = draw.one_in(2);
    const bool with_relu = draw.one_in(2);
    const bool residual_first = draw.one_in(2);
    op_case.inputs = image.inputs();
    op_case.inputs.push_back(f32_positive({image.shape[3]}));
    op_case.inputs.push_back(f32({image.shape[3]}));
    if (with_residual) op_case.inputs.push_back(f32(image.shape));
    op_case.build = [=](Graph&, CaseInputs in) {
      const auto [x, used] = image.build(in);
      Value y = batch_norm(x, in[used], in[used + 1]).y;
      if (with_residual) y = residual_first ? add(in[used + 2], y) : add(y, in[used + 2]);
      return with_relu ? relu(y) : y;
    };
    // A channel may have few elements, and then a small standard deviation, which is divided by.
    op_case.tolerance = 1e-4;
  });
}

inline std::vector<OpCase> drawn_softmax_cases() {
  return draw_cases("softmax", [](Draw& draw, OpCase& op_case) {
    std::vector<std::int64_t> leading{draw.batch()};
    if (draw.one_in(3)) leading.push_back(draw.extent(7));
    const std::int64_t classes = draw.one_in(4) ? draw.from(100, 300) : draw.extent(40);
    std::vector<std::int64_t> dims = leading;
    dims.push_back(classes);
    const Shape logits(dims);
    op_case.inputs = {f32_uniform(logits, -6, 6)};
    switch (draw.from(0, 3)) {
      case 0:
        op_case.build = [](Graph&, CaseInputs in) { return softmax(in[0]); };
        break;
      case 1:
        op_case.build = [](Graph&, CaseInputs in) { return log_softmax(in[0]); };
        break;
      case 2:
        op_case.inputs.push_back(
            integers(Shape(leading), classes, draw.among<DType>({DType::I64, DType::I32})));
        op_case.build = [](Graph&, CaseInputs in) { return sparse_cross_entropy(in[0], in[1]); };
        break;
      default:
        op_case.inputs.push_back(f32_uniform(logits, 0, 1));
        op_case.build = [](Graph&, CaseInputs in) { return cross_entropy(in[0], in[1]); };
    }
  });
}

// A binary op with broadcasting, followed by an activation and a reduction.
inline std::vector<OpCase> drawn_elementwise_cases() {
  return draw_cases("elementwise", [](Draw& draw, OpCase& op_case) {
    std::vector<std::int64_t> left;
    std::vector<std::int64_t> right;
    const std::int64_t rank = draw.from(1, 4);
    for (std::int64_t axis = 0; axis < rank; ++axis) {
      const std::int64_t extent = axis == 0 ? draw.batch() : draw.extent(9);
      left.push_back(draw.one_in(4) ? 1 : extent);
      right.push_back(draw.one_in(4) ? 1 : extent);
    }
    right.erase(right.begin(), right.begin() + draw.from(0, rank));
    const auto binary = draw.among<Value (*)(Value, Value)>({add, sub, mul, maximum, minimum});
    const std::string kind = draw.among<const char*>(
        {"linear", "relu", "relu6", "leaky_relu", "gelu", "silu", "tanh", "sigmoid"});
    const auto reduce =
        draw.among<Value (*)(Value, ReduceOptions)>({nullptr, reduce_sum, reduce_mean, reduce_max});
    // Mean and maximum of nothing are undefined: reduce an axis that is not empty.
    const bool empty = std::find(left.begin(), left.end(), 0) != left.end() ||
                       std::find(right.begin(), right.end(), 0) != right.end();
    const ReduceOptions options{.axes = {draw.from(empty ? rank - 1 : 0, rank - 1)},
                                .keepdims = draw.one_in(2)};
    const bool reduced = reduce != nullptr && !(empty && rank == 1);
    op_case.inputs = {f32(Shape(left)), f32(Shape(right))};
    op_case.build = [=](Graph&, CaseInputs in) {
      const Value y = activation(binary(in[0], in[1]), kind);
      return reduced ? reduce(y, options) : y;
    };
  });
}

// A few of the small cases, because finite differences run a case dozens of times.
inline std::vector<OpCase> few_and_small(const std::vector<OpCase>& cases) {
  constexpr std::int64_t kMostElements = 1500;
  constexpr std::size_t kOneIn = 8;
  std::vector<OpCase> small;
  std::copy_if(cases.begin(), cases.end(), std::back_inserter(small), [](const OpCase& op_case) {
    std::int64_t elements = 0;
    for (const CaseInput& input : op_case.inputs) elements += input.shape.elements();
    return elements <= kMostElements;
  });
  std::vector<OpCase> few;
  for (std::size_t i = 0; i < small.size(); i += kOneIn) few.push_back(small[i]);
  return few;
}

}  // namespace lockstep
