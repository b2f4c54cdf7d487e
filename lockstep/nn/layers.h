// All layers.
#pragma once

#include "lockstep/nn/layers/activation.h"
#include "lockstep/nn/layers/conv.h"
#include "lockstep/nn/layers/dense.h"
#include "lockstep/nn/layers/dropout.h"
#include "lockstep/nn/layers/embedding.h"
#include "lockstep/nn/layers/input.h"
#include "lockstep/nn/layers/merge.h"
#include "lockstep/nn/layers/normalization.h"
#include "lockstep/nn/layers/pooling.h"
#include "lockstep/nn/layers/rescaling.h"
#include "lockstep/nn/layers/reshape.h"
