// The code of wrong.cpp and more with fields that exist: it compiles.
#include "lockstep/nn/layers.h"
#include "lockstep/train/model.h"

using namespace lockstep;

void named() {
  Dense(DenseOptions{.units = 10});
  Conv2D(8, Conv2DOptions{.kernel_size = 3});
  Adam(AdamOptions{.learning_rate = 0.1});
  [[maybe_unused]] CompileOptions compile{.optimizer = "adam"};
  [[maybe_unused]] FitOptions fit{.epochs = 3};
}

void not_named() {
  Dense({.units = 10});
  MaxPooling2D({.pool_size = 3});
  MaxPooling2D({3, 2});
  Conv2D(8, {3, 5}, {.strides = 2});
  Conv2D(8, {.kernel_size = {3, 5}, .strides = 2});
  Input({28, 28});
  Input({.shape = {28, 28}});
  Reshape({4, -1});
  Reshape({.target_shape = {4, -1}});
  ZeroPadding2D({{1, 0}, {2, 3}});
  ZeroPadding2D({.padding = {1, 2}});
  MirroredStrategy({"cpu:0", "cpu:1"});
  MirroredStrategy({.devices = {"cpu:0"}});
  MirroredStrategy({.devices = {"cpu:0", "cpu:1"}, .logical_cpus = 2});
  MirroredStrategy();
}
