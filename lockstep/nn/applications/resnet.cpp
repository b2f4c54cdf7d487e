#include "lockstep/base/error.h"
#include "lockstep/nn/applications/applications.h"
#include "lockstep/nn/applications/pixels.h"
#include "lockstep/nn/layers.h"

namespace lockstep::applications {
namespace {

struct Architecture {
  std::vector<int> blocks;  // per stage, of which there are four
  bool bottleneck = false;
};

Architecture architecture(int depth) {
  switch (depth) {
    case 18:
      return {{2, 2, 2, 2}, false};
    case 34:
      return {{3, 4, 6, 3}, false};
    case 50:
      return {{3, 4, 6, 3}, true};
    case 101:
      return {{3, 4, 23, 3}, true};
    case 152:
      return {{3, 8, 36, 3}, true};
    default:
      fail<UsageError>("[resnet] there is no ResNet of depth {}; there are 18, 34, 50, 101, 152",
                       depth);
  }
}

struct Convolution {
  std::int64_t filters = 0;
  Pair kernel = 1;
  Pair stride = 1;
};

// A convolution without bias, padded so that only the stride shrinks the image.
Symbol convolve(const Symbol& x, const Convolution& shape, const std::string& name) {
  return Conv2D({.filters = shape.filters,
                 .kernel_size = shape.kernel,
                 .strides = shape.stride,
                 .padding = {shape.kernel.height / 2, shape.kernel.width / 2},
                 .use_bias = false,
                 .kernel_initializer = VarianceScaling(
                     {.scale = 2.0, .mode = FanMode::Out, .distribution = Distribution::Normal}),
                 .name = name})(x);
}

// Batch norm with the network's options.
struct Normalize {
  bool synchronized = false;
  bool zero_init_residual = false;
  Symbol operator()(const Symbol& x, const std::string& name, bool ends_block = false) const {
    return BatchNormalization(
        {.momentum = 0.9,
         .epsilon = 1e-5,
         .gamma_initializer = ends_block && zero_init_residual ? Zeros() : Ones(),
         .synchronized = synchronized,
         .name = name})(x);
  }
};

Symbol relu(const Symbol& x, const std::string& name) {
  return Activation({.activation = "relu", .name = name})(x);
}

// One residual block: its convolutions in order, and the index of the one with the stride.
struct Block {
  std::vector<Convolution> convolutions;
  std::size_t strided = 0;
};

Block make_block(std::int64_t width, bool bottleneck) {
  if (bottleneck) return {{{width, 1}, {width, 3}, {4 * width, 1}}, 1};
  return {{{width, 3}, {width, 3}}, 0};
}

Symbol residual(const Symbol& input, Block block, Pair stride, const std::string& name,
                const Normalize& normalize) {
  block.convolutions[block.strided].stride = stride;
  const std::int64_t outputs = block.convolutions.back().filters;
  Symbol x = input;
  for (std::size_t i = 0; i < block.convolutions.size(); ++i) {
    const bool last = i + 1 == block.convolutions.size();
    x = convolve(x, block.convolutions[i], fmt::format("{}_conv{}", name, i + 1));
    x = normalize(x, fmt::format("{}_bn{}", name, i + 1), last);
    if (!last) x = relu(x, fmt::format("{}_relu{}", name, i + 1));
  }
  Symbol shortcut = input;
  if (stride != Pair(1) || input.type().shape[-1] != outputs) {
    shortcut = convolve(input, {outputs, 1, stride}, name + "_downsample_0");
    shortcut = normalize(shortcut, name + "_downsample_1");
  }
  return relu(Add({.name = name + "_add"})({x, shortcut}), name + "_relu");
}

Symbol stem(const Symbol& input, bool small_input, const Normalize& normalize) {
  const Convolution first = small_input ? Convolution{64, 3, 1} : Convolution{64, 7, 2};
  const Symbol x = relu(normalize(convolve(input, first, "conv1"), "bn1"), "relu");
  if (small_input) return x;
  return MaxPooling2D({.pool_size = 3, .strides = 2, .padding = 1, .name = "maxpool"})(x);
}

}  // namespace

std::shared_ptr<Network> resnet(ResNetOptions options) {
  const Architecture shape = architecture(options.depth);
  require(options.input_shape.rank() == 3, "[resnet] expects images (H, W, C), got {}",
          options.input_shape);
  const Symbol input = Input({.shape = options.input_shape, .dtype = options.dtype});
  const Normalize normalize{.synchronized = options.synchronized,
                            .zero_init_residual = options.zero_init_residual};
  Symbol x = stem(scaled_pixels(input), options.small_input, normalize);
  std::int64_t width = 64;
  for (std::size_t stage = 0; stage < shape.blocks.size(); ++stage, width *= 2) {
    for (int i = 0; i < shape.blocks[stage]; ++i) {
      const Pair stride = stage > 0 && i == 0 ? 2 : 1;
      x = residual(x, make_block(width, shape.bottleneck), stride,
                   fmt::format("layer{}_{}", stage + 1, i), normalize);
    }
  }
  x = GlobalAveragePooling2D({.name = "avgpool"})(x);
  // PyTorch's linear layer: uniform within 1 / sqrt(inputs).
  const Symbol logits = Dense({.units = options.classes,
                               .kernel_initializer = VarianceScaling(
                                   {.scale = 1.0 / 3, .distribution = Distribution::Uniform}),
                               .name = "fc"})(x);
  const std::string name =
      options.name.empty() ? fmt::format("resnet{}", options.depth) : options.name;
  return Network::functional({input}, {logits}, name);
}

}  // namespace lockstep::applications
