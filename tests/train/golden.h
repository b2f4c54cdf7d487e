// Compares training with trajectories of PyTorch (tests/golden/make_goldens.py), through the whole
// path from layers to kernels.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "lockstep/autodiff/gradients.h"
#include "lockstep/exec/executor.h"
#include "lockstep/kernels/kernel.h"
#include "lockstep/nn/layers/activation.h"
#include "lockstep/nn/layers/conv.h"
#include "lockstep/nn/layers/dense.h"
#include "lockstep/nn/layers/merge.h"
#include "lockstep/nn/layers/normalization.h"
#include "lockstep/nn/layers/pooling.h"
#include "lockstep/nn/layers/reshape.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/network.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/passes/pipeline.h"
#include "lockstep/plan/plan.h"
#include "lockstep/tensor/safetensors.h"

namespace lockstep::golden {

inline constexpr double kTolerance = 1e-4;
inline constexpr std::int64_t kClasses = 5;

inline std::shared_ptr<Network> mlp() {
  return Network::sequential({Dense({.units = 16, .activation = "relu", .name = "hidden"}),
                              Dense({.units = kClasses, .name = "logits"})});
}

inline std::shared_ptr<Network> lenet() {
  return Network::sequential(
      {Conv2D({.filters = 5, .padding = "same", .activation = "relu", .name = "conv1"}),
       MaxPooling2D({.pool_size = 2}),
       Conv2D({.filters = 8, .padding = "same", .activation = "relu", .name = "conv2"}),
       MaxPooling2D({.pool_size = 2}), Flatten(),
       Dense({.units = 16, .activation = "relu", .name = "hidden"}),
       Dense({.units = kClasses, .name = "logits"})});
}

struct ConvNormOptions {
  std::string conv = "";
  std::string norm = "";
  std::int64_t filters = 0;
  std::int64_t kernel = 3;
  std::int64_t stride = 1;
};

inline Symbol conv_norm(const Symbol& x, const ConvNormOptions& options) {
  const Symbol y = Conv2D({.filters = options.filters,
                           .kernel_size = options.kernel,
                           .strides = options.stride,
                           .padding = "same",
                           .use_bias = false,
                           .name = options.conv})(x);
  return BatchNormalization({.momentum = 0.9, .epsilon = 1e-3, .name = options.norm})(y);
}

inline Symbol residual_block(const Symbol& x, const std::string& name, std::int64_t filters,
                             std::int64_t stride) {
  Symbol y = conv_norm(
      x, {.conv = name + "_conv1", .norm = name + "_norm1", .filters = filters, .stride = stride});
  y = Activation("relu")(y);
  y = conv_norm(y, {.conv = name + "_conv2", .norm = name + "_norm2", .filters = filters});
  Symbol shortcut = x;
  if (stride != 1) {
    shortcut = conv_norm(x, {.conv = name + "_projection",
                             .norm = name + "_projection_norm",
                             .filters = filters,
                             .kernel = 1,
                             .stride = stride});
  }
  return Activation("relu")(Add()({shortcut, y}));
}

inline std::shared_ptr<Network> resnet() {
  const Symbol images = Input({.shape = {8, 8, 3}});
  Symbol x = conv_norm(images, {.conv = "stem", .norm = "stem_norm", .filters = 4});
  x = Activation("relu")(x);
  x = residual_block(x, "block1", 4, 1);
  x = residual_block(x, "block2", 8, 2);
  x = GlobalAveragePooling2D()(x);
  return Network::functional({images}, {Dense({.units = kClasses, .name = "logits"})(x)});
}

struct GoldenModel {
  std::string name;
  std::shared_ptr<Network> (*make)();
};
inline const std::vector<GoldenModel> kModels = {
    {"mlp", mlp}, {"lenet", lenet}, {"resnet", resnet}};

// The options must match those of make_goldens.py.
struct GoldenOptimizer {
  std::string name;
  Optimizer (*make)();
};
inline const std::vector<GoldenOptimizer> kOptimizers = {
    {"sgd", [] { return SGD({.learning_rate = 0.05}); }},
    {"momentum", [] { return SGD({.learning_rate = 0.01, .momentum = 0.9}); }},
    {"nesterov", [] { return SGD({.learning_rate = 0.01, .momentum = 0.9, .nesterov = true}); }},
    {"adam", [] { return Adam({.learning_rate = 0.002}); }},
    {"adamw", [] { return AdamW({.learning_rate = 0.002, .weight_decay = 0.05}); }},
    {"rmsprop", [] { return RMSprop({.learning_rate = 0.001}); }},
    {"rmsprop_momentum", [] { return RMSprop({.learning_rate = 0.0005, .momentum = 0.8}); }},
    {"rmsprop_centered",
     [] {
       return RMSprop(
           {.learning_rate = 0.0005, .momentum = 0.5, .epsilon = 1e-5, .centered = true});
     }},
    {"adagrad", [] { return Adagrad({.learning_rate = 0.01}); }},
    {"lars", [] { return LARS({.learning_rate = 0.5, .weight_decay = 1e-3, .trust = 0.01}); }},
    {"lamb", [] { return LAMB({.learning_rate = 0.005, .epsilon = 1e-6, .weight_decay = 0.01}); }},
};

// A training step: inputs "x" and "y", outputs "sum" and "weight" of the loss.
inline Graph trace(Network& network, const Optimizer& optimizer, const ValueType& x,
                   const ValueType& y) {
  Graph graph;
  const std::vector<Value> inputs = {graph.input("x", x)};
  const Value logits = network.trace(inputs, {.training = true});
  const LossPair loss =
      sparse_categorical_crossentropy(graph.input("y", y), logits, {.from_logits = true});
  const std::vector<VariableRef> parameters = network.trainable_variables();
  std::vector<Value> targets;
  for (const VariableRef& parameter : parameters) targets.push_back(graph.variable(parameter));
  optimizer.apply(graph, parameters, gradients(loss.sum, targets), loss.weight);
  graph.output("sum", loss.sum);
  graph.output("weight", loss.weight);
  return graph;
}

// |a - b| / |b|.
inline double distance(const Tensor& a, const Tensor& b) {
  double difference = 0.0;
  double size = 0.0;
  const auto x = a.values<float>();
  const auto y = b.values<float>();
  for (std::size_t i = 0; i < y.size(); ++i) {
    difference += std::pow(static_cast<double>(x[i]) - static_cast<double>(y[i]), 2);
    size += std::pow(static_cast<double>(y[i]), 2);
  }
  return std::sqrt(difference / size);
}

// Expects the same model, started from the same weights and trained on the same batches, to have
// the same losses at every step and the same weights after the last.
inline void expect_golden(const GoldenModel& model, const GoldenOptimizer& rule,
                          const KernelLibrary& library, Device& device) {
  const std::filesystem::path folder = LOCKSTEP_SOURCE_DIR "/tests/golden";
  const auto golden = load_safetensors(folder / (model.name + ".safetensors")).tensors;
  const Tensor inputs = golden.at("inputs");
  const Tensor labels = golden.at("labels");
  const std::int64_t batches = inputs.shape()[0];
  const auto batch_of = [](const Tensor& all, std::int64_t batch) {
    const auto dims = all.shape().dims().subspan(1);
    return all.rows(batch, 1).reshaped(Shape(std::vector<std::int64_t>(dims.begin(), dims.end())));
  };
  const auto type_of = [&](const Tensor& all) {
    return ValueType{all.dtype(), batch_of(all, 0).shape()};
  };

  const std::shared_ptr<Network> network = model.make();
  const Optimizer optimizer = rule.make();
  Graph graph = trace(*network, optimizer, type_of(inputs), type_of(labels));
  optimize(graph, library);
  State state(device, 0);
  Executor executor(make_plan(std::move(graph), library), library, state);
  for (const VariableRef& variable : network->variables()) {
    state.set(*variable, golden.at("initial/" + variable->name));
  }

  const Tensor losses = golden.at(rule.name + "/losses");
  for (std::int64_t step = 0; step < losses.elements(); ++step) {
    executor.await_inputs();
    executor.input("x").copy_from(batch_of(inputs, step % batches));
    executor.input("y").copy_from(batch_of(labels, step % batches));
    executor.run();
    executor.wait();
    const double loss = executor.output("sum").item() / executor.output("weight").item();
    const double expected = losses.values<float>()[static_cast<std::size_t>(step)];
    ASSERT_NEAR(loss, expected, kTolerance * expected) << "step " << step;
  }
  EXPECT_EQ(state.get(*optimizer.iterations()).item(), losses.elements());
  for (const VariableRef& variable : network->variables()) {
    EXPECT_LT(distance(state.get(*variable), golden.at(rule.name + "/final/" + variable->name)),
              kTolerance)
        << variable->name;
  }
}

}  // namespace lockstep::golden
