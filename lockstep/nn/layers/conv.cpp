#include "lockstep/nn/layers/conv.h"

#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/conv.h"
#include "lockstep/nn/layers/activation.h"
#include "lockstep/nn/layers/argument.h"

namespace lockstep {
namespace {

void require_positive(const Pair& pair, const char* layer, const char* what) {
  require(pair.height > 0 && pair.width > 0, "[{}] {} must be above 0, got {} × {}", layer, what,
          pair.height, pair.width);
}

// Conv2D, and DepthwiseConv2D as one group per channel.
class ConvLayer final : public LayerBase {
 public:
  struct Depthwise {
    std::int64_t multiplier = 1;
  };
  explicit ConvLayer(Conv2DOptions options, std::optional<Depthwise> depthwise = {})
      : options_(std::move(options)), depthwise_(depthwise) {
    const char* layer = depthwise ? "depthwise_conv2d" : "conv2d";
    const std::int64_t outputs = depthwise ? depthwise->multiplier : options_.filters;
    require(outputs > 0, "[{}] {} must be above 0, got {}", layer,
            depthwise ? "depth_multiplier" : "filters", outputs);
    require(options_.groups > 0, "[{}] groups must be above 0, got {}", layer, options_.groups);
    require_positive(options_.kernel_size, layer, "kernel_size");
    require_positive(options_.strides, layer, "strides");
    require_positive(options_.dilation_rate, layer, "dilation_rate");
    require_activation(options_.activation);
  }
  std::string kind() const override { return depthwise_ ? "DepthwiseConv2D" : "Conv2D"; }

  void build(std::span<const ValueType> inputs) override {
    const ValueType& x = only(inputs);
    require_images(x);
    const std::int64_t channels = x.shape[-1];
    const auto [height, width] = options_.kernel_size;
    if (depthwise_) {
      options_.groups = channels;
      options_.filters = channels * depthwise_->multiplier;
      if (options_.kernel_initializer) {
        const Shape view{height, width, channels, depthwise_->multiplier};
        options_.kernel_initializer = [fill = options_.kernel_initializer, view](
                                          Tensor& target, std::uint64_t seed) {
          Tensor per_channel = target.reshaped(view);
          fill(per_channel, seed);
        };
      }
    }
    require(channels % options_.groups == 0 && options_.filters % options_.groups == 0,
            "{}{} groups do not divide {} channels into {} filters", where(), options_.groups,
            channels, options_.filters);
    kernel_ = add_variable(
        "kernel", {height, width, channels / options_.groups, options_.filters},
        {.initializer = options_.kernel_initializer, .regularizer = options_.kernel_regularizer});
    if (!options_.use_bias) return;
    bias_ = add_variable(
        "bias", {options_.filters},
        {.initializer = options_.bias_initializer, .regularizer = options_.bias_regularizer});
  }

  Value call(std::span<const Value> inputs, const CallOptions&) override {
    const Value x = as_floats(only(inputs));
    Graph& graph = x.graph();
    const ConvOptions options{
        .strides = options_.strides.array(),
        .dilations = options_.dilation_rate.array(),
        .padding = options_.padding.resolve(x.shape(), options_.kernel_size, options_.strides,
                                            options_.dilation_rate),
        .groups = options_.groups};
    const Value kernel = graph.variable(kernel_);
    const Value y =
        bias_ ? conv2d(x, kernel, graph.variable(bias_), options) : conv2d(x, kernel, options);
    return activate(y, options_.activation);
  }

 private:
  Conv2DOptions options_;
  std::optional<Depthwise> depthwise_;
  VariableRef kernel_, bias_;
};

}  // namespace

Conv2D::Conv2D(Conv2DOptions options) : Layer(make_named_layer<ConvLayer>(options.name, options)) {}

Conv2D::Conv2D(std::int64_t filters, Conv2DOptions options)
    : Conv2D(with_argument("conv2d", "filters", &Conv2DOptions::filters, filters,
                           std::move(options))) {}

Conv2D::Conv2D(std::int64_t filters, Pair kernel_size, Conv2DOptions options)
    : Conv2D(filters, with_argument("conv2d", "kernel_size", &Conv2DOptions::kernel_size,
                                    kernel_size, std::move(options))) {}

DepthwiseConv2D::DepthwiseConv2D(DepthwiseConv2DOptions options)
    : Layer(make_named_layer<ConvLayer>(
          options.name,
          Conv2DOptions{.kernel_size = options.kernel_size,
                        .strides = options.strides,
                        .padding = options.padding,
                        .dilation_rate = options.dilation_rate,
                        .activation = options.activation,
                        .use_bias = options.use_bias,
                        .kernel_initializer = options.depthwise_initializer,
                        .bias_initializer = options.bias_initializer,
                        .kernel_regularizer = options.depthwise_regularizer,
                        .bias_regularizer = options.bias_regularizer},
          ConvLayer::Depthwise{options.depth_multiplier})) {}

DepthwiseConv2D::DepthwiseConv2D(Pair kernel_size, DepthwiseConv2DOptions options)
    : DepthwiseConv2D(with_argument("depthwise_conv2d", "kernel_size",
                                    &DepthwiseConv2DOptions::kernel_size, kernel_size,
                                    std::move(options))) {}

}  // namespace lockstep
