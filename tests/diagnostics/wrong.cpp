// Code with fields that do not exist. run.cmake compiles it and checks that errors name them.
#include "lockstep/nn/layers.h"
#include "lockstep/train/model.h"

using namespace lockstep;

void named() {
  Dense(DenseOptions{.unit = 10});
  Conv2D(8, Conv2DOptions{.kernel = 3});
  Adam(AdamOptions{.lr = 0.1});
  CompileOptions compile{.optimiser = "adam"};
  FitOptions fit{.epoch = 3};
}

void not_named() {
  Dense({.unit = 10});
  MaxPooling2D({.pool = 3});
}
