// Well-known networks as models: applications::ResNet50({.input_shape = {32, 32, 3}, .classes =
// 10}).
#pragma once

#include <utility>

#include "lockstep/nn/applications/applications.h"
#include "lockstep/train/model.h"

namespace lockstep::applications {

// options.depth is ignored: the function's name gives the depth.
inline Model ResNet(int depth, ResNetOptions options) {
  options.depth = depth;
  return Model(resnet(std::move(options)));
}
inline Model ResNet18(ResNetOptions options = {}) {
  return ResNet(18, std::move(options));
}
inline Model ResNet34(ResNetOptions options = {}) {
  return ResNet(34, std::move(options));
}
inline Model ResNet50(ResNetOptions options = {}) {
  return ResNet(50, std::move(options));
}
inline Model ResNet101(ResNetOptions options = {}) {
  return ResNet(101, std::move(options));
}
inline Model ResNet152(ResNetOptions options = {}) {
  return ResNet(152, std::move(options));
}
inline Model LeNet(LeNetOptions options = {}) {
  return Model(lenet(std::move(options)));
}
inline Model MLP(MLPOptions options = {}) {
  return Model(mlp(std::move(options)));
}

}  // namespace lockstep::applications
