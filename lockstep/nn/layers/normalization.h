// Normalisation over the batch and over the features.
#pragma once

#include <string>

#include "lockstep/nn/initializer.h"
#include "lockstep/nn/layer.h"
#include "lockstep/nn/regularizer.h"

namespace lockstep {

struct BatchNormalizationOptions {
  double momentum = 0.99;
  double epsilon = 1e-3;
  bool center = true;  // with beta
  bool scale = true;   // with gamma
  Initializer beta_initializer = Zeros();
  Initializer gamma_initializer = Ones();
  Initializer moving_mean_initializer = Zeros();
  Initializer moving_variance_initializer = Ones();
  Regularizer beta_regularizer = {};
  Regularizer gamma_regularizer = {};
  // In training, statistics of the global batch over all replicas, not of each replica's piece.
  bool synchronized = false;
  std::string name = "";
};

// Normalises with statistics over all axes except the last. In training these are the batch's,
// which also update the moving averages: moving = moving * momentum + batch * (1 - momentum), with
// the biased variance; an empty batch updates nothing. Otherwise, and if trainable() is false, they
// are the moving averages. Variables: gamma, beta, moving_mean, moving_variance, (C) each. If a
// layer is called several times per step, the first call updates the averages. With several
// replicas they are updated with the mean of the statistics of all pieces, so that they are the
// same everywhere.
struct BatchNormalization : Layer {
  explicit BatchNormalization(BatchNormalizationOptions options = {});
};

struct LayerNormalizationOptions {
  double epsilon = 1e-3;
  bool center = true;
  bool scale = true;
  Initializer beta_initializer = Zeros();
  Initializer gamma_initializer = Ones();
  Regularizer beta_regularizer = {};
  Regularizer gamma_regularizer = {};
  std::string name = "";
};

// Over the last axis. Variables: gamma, beta, (C) each.
struct LayerNormalization : Layer {
  explicit LayerNormalization(LayerNormalizationOptions options = {});
};

}  // namespace lockstep
