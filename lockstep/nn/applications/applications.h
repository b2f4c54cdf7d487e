// Well-known networks, ready to train: applications::resnet({.depth = 50, .classes = 10}).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/nn/network.h"

namespace lockstep::applications {

// All return logits: (N, classes). If the input's dtype is an integer, pixels are first scaled to
// [0, 1].

struct MLPOptions {
  Shape input_shape = {28, 28, 1};
  DType dtype = DType::F32;
  std::vector<std::int64_t> hidden = {128};
  std::int64_t classes = 10;
  std::string name = "mlp";
};
// Flatten, a dense layer with relu per hidden size, a dense layer for the classes.
std::shared_ptr<Network> mlp(MLPOptions options = {});

struct LeNetOptions {
  Shape input_shape = {28, 28, 1};
  DType dtype = DType::F32;
  std::int64_t classes = 10;
  std::string name = "lenet";
};
// Similar to LeNet: two 3×3 convolutions (32 and 64 filters, "same", relu), each followed by 2×2
// max pooling; a dense layer of 128 with relu; a dense layer for the classes.
std::shared_ptr<Network> lenet(LeNetOptions options = {});

struct ResNetOptions {
  int depth = 50;  // 18, 34, 50, 101 or 152
  Shape input_shape = {224, 224, 3};
  DType dtype = DType::F32;
  std::int64_t classes = 1000;
  bool small_input = false;   // for images of about 32²: a 3×3 stem without stride or pooling
  bool synchronized = false;  // batch norm over the pieces of all replicas
  // The last norm of each block starts with a scale of 0 instead of 1, so that every block starts
  // as its shortcut. This keeps the first steps of deep networks stable.
  bool zero_init_residual = false;
  std::string name = "";  // "resnet50"
};
// He et al., "Deep Residual Learning for Image Recognition" (2015), in the form called v1.5: the
// stride of a bottleneck is on its 3×3 convolution. Layers have their names in PyTorch, with '_'
// for '.': layer1_0_conv1.
std::shared_ptr<Network> resnet(ResNetOptions options = {});

}  // namespace lockstep::applications
