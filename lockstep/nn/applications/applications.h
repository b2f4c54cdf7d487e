// Well-known networks, ready to train: applications::resnet({.depth = 50, .classes = 10}).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/nn/network.h"

namespace lockstep::applications {

// All give logits: (N, classes). Where the input's dtype is an integer, pixels are scaled to [0, 1]
// first.

struct MLPOptions {
  Shape input_shape = {28, 28, 1};
  DType dtype = DType::F32;
  std::vector<std::int64_t> hidden = {128};
  std::int64_t classes = 10;
  std::string name = "mlp";
};
// Flatten, a dense layer with relu for each hidden size, a dense layer of classes.
std::shared_ptr<Network> mlp(MLPOptions options = {});

struct LeNetOptions {
  Shape input_shape = {28, 28, 1};
  DType dtype = DType::F32;
  std::int64_t classes = 10;
  std::string name = "lenet";
};
// In the manner of LeNet: two 3×3 convolutions (32 and 64 filters, "same", relu), each followed by
// 2×2 max pooling; dense 128 with relu; dense classes.
std::shared_ptr<Network> lenet(LeNetOptions options = {});

struct ResNetOptions {
  int depth = 50;  // 18, 34, 50, 101 or 152
  Shape input_shape = {224, 224, 3};
  DType dtype = DType::F32;
  std::int64_t classes = 1000;
  bool small_input = false;   // for images of some 32²: a 3×3 stem without stride and pooling
  bool synchronized = false;  // batch norm over the pieces of all replicas
  // The last norm of each block starts with a scale of 0 instead of 1, so that every block starts
  // as its shortcut: the first steps are calm then, however deep the network is.
  bool zero_init_residual = false;
  std::string name = "";  // "resnet50"
};
// He et al., "Deep Residual Learning for Image Recognition" (2015), in the form called v1.5: the
// stride of a bottleneck is on its 3×3 convolution. Layers are named as PyTorch names them, with
// '_' for '.': layer1_0_conv1.
std::shared_ptr<Network> resnet(ResNetOptions options = {});

}  // namespace lockstep::applications
