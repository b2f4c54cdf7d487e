#include "lockstep/nn/layers.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "nn/running.h"

namespace lockstep {
namespace {

Value input(Graph& graph, Shape shape, DType dtype = DType::F32) {
  return graph.input("x", {dtype, std::move(shape)});
}

Shape output_shape(const Layer& layer, Shape shape, DType dtype = DType::F32) {
  Graph graph;
  return layer(input(graph, std::move(shape), dtype)).shape();
}

// The layer's output for one input, with a state that tests can inspect.
Tensor apply(const Layer& layer, const Tensor& x, State& state, CallOptions options = {}) {
  Graph graph;
  graph.output("y", layer(input(graph, x.shape(), x.dtype()), options));
  Feeds feeds = {{"x", x}};
  for (const auto& [name, id] : graph.inputs()) {
    if (name == "random_state") feeds[name] = Tensor::of(std::vector<std::int64_t>{0, 0}, {2});
  }
  return run_step(std::move(graph), feeds, state)["y"];
}

Tensor apply(const Layer& layer, const Tensor& x, CallOptions options = {}) {
  State state(host(), 1);
  return apply(layer, x, state, options);
}

std::vector<std::string> names(const std::vector<VariableRef>& variables) {
  std::vector<std::string> all;
  for (const VariableRef& variable : variables) all.push_back(variable->name);
  return all;
}

TEST(Layers, GiveTheShapesOfKeras) {
  EXPECT_EQ(output_shape(Dense({.units = 10}), {32, 784}), (Shape{32, 10}));
  EXPECT_EQ(output_shape(Dense({.units = 7}), {2, 5, 3}), (Shape{2, 5, 7}));
  EXPECT_EQ(output_shape(Conv2D({.filters = 8, .kernel_size = 3}), {2, 9, 7, 3}),
            (Shape{2, 7, 5, 8}));
  EXPECT_EQ(
      output_shape(Conv2D({.filters = 8, .kernel_size = {3, 5}, .padding = "same"}), {2, 9, 7, 3}),
      (Shape{2, 9, 7, 8}));
  EXPECT_EQ(output_shape(Conv2D({.filters = 8, .kernel_size = 3, .strides = 2, .padding = "same"}),
                         {2, 9, 8, 3}),
            (Shape{2, 5, 4, 8}));
  EXPECT_EQ(output_shape(Conv2D({.filters = 8, .kernel_size = 7, .strides = 2, .padding = 3}),
                         {2, 224, 224, 3}),
            (Shape{2, 112, 112, 8}));
  EXPECT_EQ(
      output_shape(Conv2D({.filters = 4, .kernel_size = 3, .padding = {1, 0, 2, 0}}), {2, 9, 8, 3}),
      (Shape{2, 8, 8, 4}));
  EXPECT_EQ(
      output_shape(Conv2D({.filters = 4, .kernel_size = 3, .dilation_rate = 2}), {2, 9, 8, 3}),
      (Shape{2, 5, 4, 4}));
  EXPECT_EQ(output_shape(DepthwiseConv2D({.kernel_size = 3, .depth_multiplier = 2}), {2, 9, 8, 3}),
            (Shape{2, 7, 6, 6}));
  EXPECT_EQ(output_shape(MaxPooling2D({.pool_size = 2}), {2, 9, 8, 3}), (Shape{2, 4, 4, 3}));
  EXPECT_EQ(
      output_shape(MaxPooling2D({.pool_size = 3, .strides = 2, .padding = 1}), {2, 112, 112, 3}),
      (Shape{2, 56, 56, 3}));
  EXPECT_EQ(output_shape(AveragePooling2D({.pool_size = {2, 1}}), {2, 8, 8, 3}),
            (Shape{2, 4, 8, 3}));
  EXPECT_EQ(output_shape(GlobalAveragePooling2D(), {2, 8, 8, 3}), (Shape{2, 3}));
  EXPECT_EQ(output_shape(GlobalAveragePooling2D({.keepdims = true}), {2, 8, 8, 3}),
            (Shape{2, 1, 1, 3}));
  EXPECT_EQ(output_shape(GlobalMaxPooling2D({.keepdims = true}), {2, 8, 8, 3}),
            (Shape{2, 1, 1, 3}));
  EXPECT_EQ(output_shape(Flatten(), {2, 8, 8, 3}), (Shape{2, 192}));
  EXPECT_EQ(output_shape(Flatten(), {0, 8, 8, 3}), (Shape{0, 192}));
  EXPECT_EQ(output_shape(Reshape({.target_shape = {4, -1}}), {0, 6, 2}), (Shape{0, 4, 3}));
  EXPECT_EQ(output_shape(ZeroPadding2D({.padding = {1, 2}}), {2, 8, 8, 3}), (Shape{2, 10, 12, 3}));
  EXPECT_EQ(output_shape(Embedding({.input_dim = 5, .output_dim = 3}), {2, 7}, DType::I32),
            (Shape{2, 7, 3}));
}

TEST(Layers, TakeTheirFirstArgumentsByPosition) {
  EXPECT_EQ(output_shape(Dense(10), {32, 784}), (Shape{32, 10}));
  EXPECT_EQ(output_shape(Dense(10, {.activation = "relu"}), {32, 784}), (Shape{32, 10}));
  EXPECT_EQ(output_shape(Conv2D(8, 3), {2, 9, 7, 3}), (Shape{2, 7, 5, 8}));
  EXPECT_EQ(output_shape(Conv2D(8, {3, 5}, {.strides = 2}), {2, 9, 7, 3}), (Shape{2, 4, 2, 8}));
  EXPECT_EQ(output_shape(Conv2D(8, {.kernel_size = 5}), {2, 9, 7, 3}), (Shape{2, 5, 3, 8}));
  EXPECT_EQ(output_shape(DepthwiseConv2D(3), {2, 9, 8, 3}), (Shape{2, 7, 6, 3}));
  EXPECT_EQ(output_shape(DepthwiseConv2D({3, 1}), {2, 9, 8, 3}), (Shape{2, 7, 8, 3}));
  EXPECT_EQ(output_shape(MaxPooling2D(), {2, 9, 8, 3}), (Shape{2, 4, 4, 3}));
  EXPECT_EQ(output_shape(MaxPooling2D(3), {2, 9, 8, 3}), (Shape{2, 3, 2, 3}));
  EXPECT_EQ(output_shape(MaxPooling2D({3, 2}, {.strides = 1}), {2, 9, 8, 3}), (Shape{2, 7, 7, 3}));
  EXPECT_EQ(output_shape(AveragePooling2D({4, 4}), {2, 8, 8, 3}), (Shape{2, 2, 2, 3}));
  EXPECT_EQ(output_shape(Reshape({4, -1}), {2, 6, 2}), (Shape{2, 4, 3}));
  EXPECT_EQ(output_shape(ZeroPadding2D(1), {2, 8, 8, 3}), (Shape{2, 10, 10, 3}));
  EXPECT_EQ(output_shape(ZeroPadding2D({1, 2}), {2, 8, 8, 3}), (Shape{2, 10, 12, 3}));
  EXPECT_EQ(output_shape(ZeroPadding2D({{1, 0}, {2, 3}}), {2, 8, 8, 3}), (Shape{2, 9, 13, 3}));
  EXPECT_EQ(output_shape(Embedding(5, 3), {2, 7}, DType::I32), (Shape{2, 7, 3}));
  expect_near(apply(Rescaling(0.5), floats({1, 3}, {1, 2})), {0.5, 1.5});
  expect_near(apply(Dropout(0.2), floats({1, 3}, {1, 2})), {1, 3});
  EXPECT_ERROR(Dense(10, {.units = 5}), UsageError, "[dense] units is given twice");
  EXPECT_ERROR(Conv2D(8, 3, {.kernel_size = 5}), UsageError, "kernel_size is given twice");
}

TEST(Layers, ConvertIntegersAndDoublesToFloats) {
  const Dense dense(1, {.kernel_initializer = "ones"});
  expect_near(apply(dense, Tensor::from({{1, 2}}).cast(DType::U8)), {3});
  const Tensor pixels(DType::U8, {1, 4, 4, 1});
  EXPECT_EQ(apply(Conv2D(2, 3), pixels).dtype(), DType::F32);
  EXPECT_EQ(apply(Conv2D(2, 3), pixels.cast(DType::F64)).dtype(), DType::F32);
}

TEST(Layers, CreateTheirVariablesWhenFirstCalled) {
  Conv2D conv({.filters = 8, .kernel_size = {3, 5}, .groups = 2, .name = "c"});
  EXPECT_TRUE(conv->variables().empty());
  output_shape(conv, {2, 9, 9, 4});
  ASSERT_EQ(names(conv->variables()), (std::vector<std::string>{"c/kernel", "c/bias"}));
  EXPECT_EQ(conv->variables()[0]->shape, (Shape{3, 5, 2, 8}));
  EXPECT_EQ(conv->variables()[1]->shape, (Shape{8}));

  BatchNormalization norm;
  output_shape(norm, {2, 9, 9, 4});
  EXPECT_EQ(names(norm->variables()),
            (std::vector<std::string>{"batch_normalization/gamma", "batch_normalization/beta",
                                      "batch_normalization/moving_mean",
                                      "batch_normalization/moving_variance"}));
  EXPECT_EQ(norm->trainable_variables().size(), 2u);
  norm->set_trainable(false);
  EXPECT_TRUE(norm->trainable_variables().empty());
}

TEST(Layers, InOneGraphGetDifferentNames) {
  Graph graph;
  Dense a({.units = 4}), b({.units = 4});
  Dropout c, d;
  const CallOptions training{.training = true};
  d(c(b(a(input(graph, {2, 4})), training), training), training);
  EXPECT_EQ(a->variables()[0]->name, "dense/kernel");
  EXPECT_EQ(b->variables()[0]->name, "dense_1/kernel");
  EXPECT_NE(c->path(), d->path());
}

TEST(Layers, ExplainErrorsInTheirInput) {
  Graph graph;
  EXPECT_ERROR(Conv2D({.filters = 3, .name = "conv2d_1"})(input(graph, {32, 784})), UsageError,
               "[conv2d] conv2d_1: expects images (N, H, W, C), got (32, 784)");
  const Value bytes = graph.input("bytes", {DType::U8, {32, 28, 28, 1}});
  EXPECT_ERROR(MaxPooling2D()(bytes), UsageError, "Rescaling");
  EXPECT_ERROR(BatchNormalization()(Flatten()(bytes)), UsageError, "got u8(32, 784)");
  EXPECT_ERROR(Embedding({.input_dim = 3, .output_dim = 2})(graph.input("f", {DType::F32, {2, 2}})),
               UsageError, "expects integer indices, got f32(2, 2)");
  EXPECT_ERROR(Dense({}), UsageError, "units must be above 0, got 0");
  EXPECT_ERROR(Dense({.units = 3, .activation = "rellu"}), UsageError, "called rellu; there are");
  EXPECT_ERROR(Conv2D({.filters = 3, .groups = 2})(graph.input("g", {DType::F32, {2, 8, 8, 3}})),
               UsageError, "2 groups do not divide 3 channels into 3 filters");
  EXPECT_ERROR(Dropout({.rate = 1.5}), UsageError, "got 1.5");
  EXPECT_ERROR(Reshape({.target_shape = {5}})(graph.input("r", {DType::F32, {2, 8}})), UsageError,
               "the 8 elements of a sample (None, 8) do not fill (None, 5)");
}

TEST(Layers, RefuseAnotherTypeThanTheyWereBuiltFor) {
  Graph graph;
  Dense dense({.units = 3, .name = "head"});
  dense(graph.input("a", {DType::F32, {2, 8}}));
  dense(graph.input("b", {DType::F32, {5, 8}}));
  EXPECT_ERROR(dense(graph.input("c", {DType::F32, {2, 9}})), UsageError,
               "[dense] head: was built for f32(None, 8), got f32(None, 9)");
}

TEST(Layers, WithoutVariablesWorkOnSeveralShapes) {
  Activation relu("relu");
  EXPECT_EQ(output_shape(relu, {2, 8}), (Shape{2, 8}));
  EXPECT_EQ(output_shape(relu, {2, 4, 4, 1}), (Shape{2, 4, 4, 1}));
}

TEST(Layers, AreRefusedIfEmpty) {
  Graph graph;
  EXPECT_ERROR(Layer()(input(graph, {2, 8})), UsageError, "an empty Layer was used");
}

TEST(Layers, CanBeNamedOnce) {
  Dense dense({.units = 3, .name = "a"});
  EXPECT_ERROR(dense->set_name("b"), UsageError, "it is called a, not b");
  EXPECT_ERROR(Dense({.units = 3, .name = "a/b"}), UsageError, "contain '/'");
}

TEST(Dense, MultipliesAddsTheBiasAndActivates) {
  Dense dense({.units = 2,
               .activation = "relu",
               .kernel_initializer =
                   [](Tensor& kernel, std::uint64_t) {
                     kernel.copy_from(floats({1, 2, 3, -4}, {2, 2}));
                   },
               .bias_initializer = Constant(0.5)});
  expect_near(apply(dense, floats({1, 1, -2, 1}, {2, 2})), {4.5, 0, 1.5, 0});
}

TEST(Conv2D, WithSamePaddingAddsTheNeighbourhood) {
  std::vector<float> image(16);
  for (std::size_t i = 0; i < 16; ++i) image[i] = static_cast<float>(i + 1);
  Conv2D conv({.filters = 1, .kernel_size = 3, .padding = "same", .kernel_initializer = Ones()});
  expect_near(apply(conv, floats(image, {1, 4, 4, 1})),
              {14, 24, 30, 22, 33, 54, 63, 45, 57, 90, 99, 69, 46, 72, 78, 54});
}

TEST(DepthwiseConv2D, KeepsChannelsApart) {
  DepthwiseConv2D conv({.kernel_size = 1,
                        .depth_multiplier = 2,
                        .depthwise_initializer = [](Tensor& kernel, std::uint64_t) {
                          EXPECT_EQ(kernel.shape(), (Shape{1, 1, 2, 2}));
                          kernel.copy_from(floats({1, 10, 100, 1000}, {1, 1, 2, 2}));
                        }});
  expect_near(apply(conv, floats({1, 2, 3, 4}, {1, 1, 2, 2})),
              {1, 10, 200, 2000, 3, 30, 400, 4000});
}

TEST(BatchNormalization, NormalisesByTheBatchAndMovesTheAverages) {
  BatchNormalization norm({.momentum = 0.9});
  State state(host(), 1);
  const Tensor x = floats({1, 10, 3, 20, 5, 60}, {3, 2});
  expect_near(apply(norm, x, state, {.training = true}),
              {-1.2245153, -0.9258192, 0, -0.4629096, 1.2245153, 1.3887287});
  const auto variables = norm->variables();
  expect_near(state.get(*variables[2]), {0.3, 3.0});
  expect_near(state.get(*variables[3]), {0.9 + 0.26666667, 0.9 + 46.666666});
  apply(norm, x, state, {.training = true});
  expect_near(state.get(*variables[2]), {0.57, 5.7});
}

TEST(BatchNormalization, UsesTheAveragesOutsideTrainingAndWhenFrozen) {
  BatchNormalization norm;
  State state(host(), 1);
  const Tensor x = floats({1, 10, 3, 20, 5, 60}, {3, 2});
  const std::vector<double> expected = {0.9995004,  9.9950037, 2.9985013,
                                        19.9900074, 4.9975019, 59.9700241};
  expect_near(apply(norm, x, state), expected);
  norm->set_trainable(false);
  expect_near(apply(norm, x, state, {.training = true}), expected);
  expect_near(state.get(*norm->variables()[2]), {0, 0});
}

TEST(BatchNormalization, KeepsTheAveragesForAnEmptyBatch) {
  BatchNormalization norm;
  State state(host(), 1);
  EXPECT_EQ(apply(norm, Tensor(DType::F32, {0, 2}), state, {.training = true}).shape(),
            (Shape{0, 2}));
  state.add(norm->variables()[2]);
  state.add(norm->variables()[3]);
  expect_near(state.get(*norm->variables()[2]), {0, 0});
  expect_near(state.get(*norm->variables()[3]), {1, 1});
}

TEST(BatchNormalization, CanBeCalledTwiceInAStep) {
  BatchNormalization norm({.momentum = 0.5});
  Graph graph;
  const CallOptions training{.training = true};
  const Value a = graph.input("a", {DType::F32, {2, 1}}),
              b = graph.input("b", {DType::F32, {2, 1}});
  graph.output("y", Add()({norm(a, training), norm(b, training)}));
  State state(host(), 1);
  run_step(std::move(graph), {{"a", floats({2, 4}, {2, 1})}, {"b", floats({7, 9}, {2, 1})}}, state);
  expect_near(state.get(*norm->variables()[2]), {1.5});
}

TEST(LayerNormalization, NormalisesEachRow) {
  expect_near(apply(LayerNormalization(), floats({1, 2, 4}, {1, 3})),
              {-1.0687014, -0.2671753, 1.3358769});
  expect_near(
      apply(LayerNormalization({.center = false, .scale = false}), floats({1, 2, 4}, {1, 3})),
      {-1.0687014, -0.2671753, 1.3358769});
}

TEST(Dropout, DropsOnlyInTraining) {
  const Tensor ones = floats(std::vector<float>(4000, 1.0f), {4, 1000});
  Dropout dropout({.rate = 0.25});
  EXPECT_TRUE(apply(dropout, ones).same_bits(ones));
  const Tensor dropped = apply(dropout, ones, {.training = true, .seed = 3});
  int zeros = 0;
  for (float value : dropped.values<float>()) {
    if (value == 0) {
      ++zeros;
    } else {
      EXPECT_FLOAT_EQ(value, 1 / 0.75f);
    }
  }
  EXPECT_NEAR(zeros, 1000, 150);
  EXPECT_TRUE(apply(dropout, ones, {.training = true, .seed = 3}).same_bits(dropped));
  EXPECT_FALSE(apply(dropout, ones, {.training = true, .seed = 4}).same_bits(dropped));
}

TEST(Dropout, DependsOnItsName) {
  const Tensor ones = floats(std::vector<float>(400, 1.0f), {4, 100});
  const CallOptions training{.training = true, .seed = 3};
  EXPECT_FALSE(apply(Dropout({.name = "a"}), ones, training)
                   .same_bits(apply(Dropout({.name = "b"}), ones, training)));
}

TEST(Rescaling, TurnsPixelsIntoFloats) {
  const Tensor pixels = Tensor::of(std::vector<std::uint8_t>{0, 51, 255}, {3, 1});
  expect_near(apply(Rescaling({.scale = 2.0 / 255, .offset = -1}), pixels), {-1, -0.6, 1});
}

TEST(Merging, AddsMultipliesAndConcatenates) {
  Graph graph;
  const Value a = graph.input("a", {DType::F32, {1, 2}}),
              b = graph.input("b", {DType::F32, {1, 2}});
  graph.output("sum", Add()({a, b, a}));
  graph.output("product", Multiply()({a, b}));
  graph.output("joined", Concatenate()({a, b}));
  EXPECT_ERROR(Add()(a), UsageError, "[add] add");
  EXPECT_ERROR(Concatenate({.axis = 0})({a, b}), UsageError, "cannot concatenate along the batch");
  State state(host(), 1);
  auto results = run_step(std::move(graph),
                          {{"a", floats({1, 2}, {1, 2})}, {"b", floats({3, 4}, {1, 2})}}, state);
  expect_near(results["sum"], {5, 8});
  expect_near(results["product"], {3, 8});
  expect_near(results["joined"], {1, 2, 3, 4});
}

TEST(Embedding, LooksUpRowsAndNamesABadIndex) {
  Embedding embedding(
      {.input_dim = 3, .output_dim = 2, .embeddings_initializer = [](Tensor& table, std::uint64_t) {
         table.copy_from(floats({0, 1, 10, 11, 20, 21}, {3, 2}));
       }});
  expect_near(apply(embedding, Tensor::of(std::vector<std::int32_t>{2, 0}, {1, 2})),
              {20, 21, 0, 1});
  EXPECT_THROW(apply(embedding, Tensor::of(std::vector<std::int32_t>{3, 0}, {1, 2})), DataError);
}

TEST(Pooling, ComputesMaximumAndMean) {
  const Tensor image = floats({1, 2, 5, 3, 4, 0}, {1, 2, 3, 1});
  expect_near(apply(MaxPooling2D({.pool_size = 2, .strides = 1}), image), {4, 5});
  expect_near(apply(AveragePooling2D({.pool_size = 2, .strides = 2, .padding = "same"}), image),
              {2.5, 2.5});
  expect_near(apply(GlobalAveragePooling2D(), image), {2.5});
  expect_near(apply(GlobalMaxPooling2D(), image), {5});
}

TEST(Activation, SupportsSoftmaxToo) {
  expect_near(apply(Activation("softmax"), floats({0, std::log(3.0f)}, {1, 2})), {0.25, 0.75});
  expect_near(apply(Activation({.activation = "leaky_relu", .negative_slope = 0.1}),
                    floats({-2, 2}, {1, 2})),
              {-0.2, 2});
}

TEST(Activation, HasTheLayersOfKeras) {
  const Tensor x = floats({-2, 8}, {1, 2});
  expect_near(apply(ReLU(), x), {0, 8});
  expect_near(apply(ReLU({.max_value = 6}), x), {0, 6});
  expect_near(apply(LeakyReLU(), x), {-0.6, 8});
  expect_near(apply(LeakyReLU(0.1), x), {-0.2, 8});
  expect_near(apply(Softmax(), floats({0, std::log(3.0f)}, {1, 2})), {0.25, 0.75});
  EXPECT_ERROR(ReLU({.max_value = 5}), UsageError, "max_value is 5");
}

TEST(Regularizers, GiveOneLossPerVariable) {
  Dense dense({.units = 2,
               .kernel_initializer = Constant(-2),
               .bias_initializer = Constant(3),
               .kernel_regularizer = L2(0.5),
               .bias_regularizer = L1L2({.l1 = 0.1, .l2 = 1})});
  Graph graph;
  dense(input(graph, {1, 3}));
  const std::vector<Value> losses = dense->losses(graph);
  ASSERT_EQ(losses.size(), 2u);
  graph.output("kernel", losses[0]);
  graph.output("bias", losses[1]);
  State state(host(), 1);
  auto results = run_step(std::move(graph), {{"x", Tensor(DType::F32, {1, 3})}}, state);
  expect_near(results["kernel"], {12});
  expect_near(results["bias"], {18.6});
  dense->set_trainable(false);
  Graph frozen;
  EXPECT_TRUE(dense->losses(frozen).empty());
}

}  // namespace
}  // namespace lockstep
