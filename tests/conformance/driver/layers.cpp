// Layers: output, gradients of inputs and variables, and the variables after the call.
#include "conformance/driver/case.h"

namespace conformance {
namespace {

ls::Pair pair_of(const Json& value) {
  if (value.is_number()) return ls::Pair(value.get<std::int64_t>());
  return {value[0].get<std::int64_t>(), value[1].get<std::int64_t>()};
}

ls::PaddingOption padding_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number()) return value.get<std::int64_t>();
  if (value.size() == 2 && value[0].is_number()) {
    return {value[0].get<std::int64_t>(), value[1].get<std::int64_t>()};
  }
  return {value[0][0].get<std::int64_t>(), value[0][1].get<std::int64_t>(),
          value[1][0].get<std::int64_t>(), value[1][1].get<std::int64_t>()};
}

ls::Regularizer regularizer_of(const Json& options, const char* name) {
  if (!options.contains(name)) return {};
  const Json& value = options.at(name);
  return ls::L1L2({.l1 = value.value("l1", 0.0), .l2 = value.value("l2", 0.0)});
}

// Options that convolutions and Dense share.
template <class Options>
void take_common(Options& options, const Json& given) {
  options.activation = given.value("activation", options.activation);
  options.use_bias = given.value("use_bias", options.use_bias);
  options.bias_regularizer = regularizer_of(given, "bias_regularizer");
}

template <class Options>
void take_window(Options& options, const Json& given) {
  if (given.contains("kernel_size")) options.kernel_size = pair_of(given["kernel_size"]);
  if (given.contains("strides")) options.strides = pair_of(given["strides"]);
  if (given.contains("dilation_rate")) options.dilation_rate = pair_of(given["dilation_rate"]);
  if (given.contains("padding")) options.padding = padding_of(given["padding"]);
}

template <class Options>
void take_normalization(Options& options, const Json& given) {
  options.epsilon = given.value("epsilon", options.epsilon);
  options.center = given.value("center", options.center);
  options.scale = given.value("scale", options.scale);
}

ls::Layer make_convolution(const std::string& kind, const Json& given) {
  if (kind == "Conv2D") {
    ls::Conv2DOptions options;
    options.filters = given.at("filters");
    options.groups = given.value("groups", options.groups);
    options.kernel_regularizer = regularizer_of(given, "kernel_regularizer");
    take_common(options, given);
    take_window(options, given);
    return ls::Conv2D(options);
  }
  ls::DepthwiseConv2DOptions options;
  options.depth_multiplier = given.value("depth_multiplier", options.depth_multiplier);
  take_common(options, given);
  take_window(options, given);
  return ls::DepthwiseConv2D(options);
}

ls::Layer make_pooling(const std::string& kind, const Json& given) {
  if (kind.starts_with("Global")) {
    const ls::GlobalPooling2DOptions options{.keepdims = given.value("keepdims", false)};
    if (kind == "GlobalMaxPooling2D") return ls::GlobalMaxPooling2D(options);
    return ls::GlobalAveragePooling2D(options);
  }
  ls::Pooling2DOptions options;
  if (given.contains("pool_size")) options.pool_size = pair_of(given["pool_size"]);
  if (given.contains("strides")) options.strides = pair_of(given["strides"]);
  if (given.contains("padding")) options.padding = padding_of(given["padding"]);
  if (kind == "MaxPooling2D") return ls::MaxPooling2D(options);
  return ls::AveragePooling2D(options);
}

}  // namespace

ls::Layer make_layer(const std::string& kind, const Json& given) {
  if (kind == "Conv2D" || kind == "DepthwiseConv2D") return make_convolution(kind, given);
  if (kind.find("Pooling2D") != std::string::npos) return make_pooling(kind, given);
  if (kind == "Dense") {
    ls::DenseOptions options;
    options.units = given.at("units");
    options.kernel_regularizer = regularizer_of(given, "kernel_regularizer");
    take_common(options, given);
    return ls::Dense(options);
  }
  if (kind == "BatchNormalization") {
    ls::BatchNormalizationOptions options;
    options.momentum = given.value("momentum", options.momentum);
    take_normalization(options, given);
    return ls::BatchNormalization(options);
  }
  if (kind == "LayerNormalization") {
    ls::LayerNormalizationOptions options;
    take_normalization(options, given);
    return ls::LayerNormalization(options);
  }
  if (kind == "Embedding") {
    return ls::Embedding(
        {.input_dim = given.at("input_dim"), .output_dim = given.at("output_dim")});
  }
  if (kind == "Activation") {
    ls::ActivationOptions options;
    options.activation = given.at("activation");
    options.negative_slope = given.value("negative_slope", options.negative_slope);
    return ls::Activation(options);
  }
  if (kind == "Dropout") return ls::Dropout({.rate = given.at("rate")});
  if (kind == "Flatten") return ls::Flatten();
  if (kind == "Reshape") {
    return ls::Reshape({.target_shape = given.at("target_shape").get<ls::Ints>()});
  }
  if (kind == "ZeroPadding2D") return ls::ZeroPadding2D({.padding = padding_of(given["padding"])});
  if (kind == "Rescaling") {
    return ls::Rescaling({.scale = given.at("scale"), .offset = given.value("offset", 0.0)});
  }
  if (kind == "Add") return ls::Add();
  if (kind == "Multiply") return ls::Multiply();
  if (kind == "Concatenate") return ls::Concatenate({.axis = given.value("axis", -1)});
  ls::fail<ls::UsageError>("[conformance] there is no layer {}", kind);
}

namespace {

ls::Shape without_batch(const ls::Shape& shape) {
  return ls::Shape(std::vector<std::int64_t>(shape.dims().begin() + 1, shape.dims().end()));
}

}  // namespace

// Inputs: x0, x1, …; weight0, …, in the order of the layer's variables; dy, the gradient of the
// output. The loss is sum(y · dy) plus the layer's regularisation losses.
Tensors run_layer(const Case& c) {
  const ls::Layer layer = make_layer(c.what, c.options);
  const bool training = c.option("training", false);
  std::vector<ls::Tensor> arguments;
  std::vector<ls::Symbol> symbols;
  for (std::string number = "0"; c.has("x" + number); number = std::to_string(arguments.size())) {
    const ls::Tensor& x = c.input("x" + number);
    arguments.push_back(x);
    symbols.push_back(ls::Input({.shape = without_batch(x.shape()), .dtype = x.dtype()}));
  }
  const std::size_t inputs = arguments.size();
  arguments.push_back(c.input("dy"));
  ls::Model model(symbols, {inputs == 1 ? layer(symbols[0]) : layer(symbols)});
  std::vector<ls::Tensor> weights;
  while (c.has("weight" + std::to_string(weights.size()))) {
    weights.push_back(c.input("weight" + std::to_string(weights.size())));
  }
  if (!weights.empty()) {
    model.build(without_batch(arguments[0].shape()), arguments[0].dtype());
    model.set_weights(weights);
  }

  const std::vector<ls::VariableRef> parameters = model.trainable_variables();
  std::vector<std::string> names = {"y"};
  ls::Function step(model, [&](std::span<const ls::Value> values) {
    ls::Graph& graph = values[0].graph();
    const ls::Value y = model(values.first(inputs), {.training = training});
    ls::Value loss = ls::reduce_sum(y * values[inputs]);
    for (const ls::Value& penalty : layer->losses(graph)) loss = loss + penalty;
    std::vector<ls::Value> targets;
    for (std::size_t i = 0; i < inputs; ++i) {
      if (!ls::is_floating(values[i].dtype())) continue;
      targets.push_back(values[i]);
      names.push_back("dx" + std::to_string(i));
    }
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      targets.push_back(graph.variable(parameters[i]));
      names.push_back("dw" + std::to_string(i));
    }
    std::vector<ls::Value> results = {y};
    if (!targets.empty()) {
      for (const ls::Value& gradient : ls::gradients(loss, targets)) results.push_back(gradient);
    }
    return results;
  });
  const std::vector<ls::Tensor> results = step.run(arguments);
  Tensors named;
  for (std::size_t i = 0; i < results.size(); ++i) named.emplace(names[i], results[i]);
  if (training && !weights.empty()) {
    const std::vector<ls::Tensor> after = model.weights();
    for (std::size_t i = 0; i < after.size(); ++i) {
      named.emplace("after" + std::to_string(i), after[i]);
    }
  }
  return named;
}

}  // namespace conformance
